"""Files that Nsight Compute and Linux's perf wrote, read into records. No torch here."""

"""The reader of the CSV files that Nsight Compute prints."""

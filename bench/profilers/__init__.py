"""The tools that look inside one step, and the readers of the files that they write."""

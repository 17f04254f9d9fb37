"""The process in front of the person: it starts a worker, watches it, and completes its record."""

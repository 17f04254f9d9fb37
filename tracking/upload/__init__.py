"""From a record on disk to a tracked run."""

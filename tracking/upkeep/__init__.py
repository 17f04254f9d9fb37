"""What keeps a tracking server in order: copies, ended runs, checks."""

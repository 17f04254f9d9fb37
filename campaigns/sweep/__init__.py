"""A whole matrix of configurations: read, ordered, claimed, measured and taken up again."""

"""What a tuning found, in words."""

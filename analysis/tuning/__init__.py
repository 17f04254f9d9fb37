"""What a tuning found, told in words."""

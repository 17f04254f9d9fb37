"""What follows from a record alone: its figures, and whether they are to be believed."""

"""Counts of a step in other forms: of a step that a user runs, and of a model by its modules."""

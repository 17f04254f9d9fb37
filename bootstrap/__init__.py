"""Sets the project up from a bare Python: `python3 -m bootstrap`. Standard library only."""

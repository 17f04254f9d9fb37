"""Runs under the roofs of their machines, and in groups of repeats."""

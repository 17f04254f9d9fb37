"""Results of other programs, read from their files as they are."""

from tracking.importing.read import Found, Problem, read_results

__all__ = ["Found", "Problem", "read_results"]

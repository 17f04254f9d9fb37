"""Results of other programs, read from their files as they are."""

from tracking.importing.result_file import Found, Problem, read_results

__all__ = ["Found", "Problem", "read_results"]

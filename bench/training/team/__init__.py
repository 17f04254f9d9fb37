"""The processes that train together: a single one, or a rank of several."""

from bench.training.team.base import Team

__all__ = ["Team"]

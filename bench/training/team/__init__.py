"""The processes that train together: one alone, or a rank of several."""

from bench.training.team.base import Team, WindowPlan

__all__ = ["Team", "WindowPlan"]

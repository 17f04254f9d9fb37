"""Two sets of runs against each other: what differs, by how much, and how surely."""

from analysis.comparison.judge import Comparison, compare_pairs
from analysis.comparison.metrics import METRICS, ComparedMetric, compared_metric
from analysis.comparison.pairs import Pairing, pair_runs
from analysis.comparison.sides import read_sides

__all__ = [
    "METRICS",
    "ComparedMetric",
    "Comparison",
    "Pairing",
    "compare_pairs",
    "compared_metric",
    "pair_runs",
    "read_sides",
]

"""Two sets of runs against each other: what differs, by how much, and how surely."""

from analysis.comparison.judgement import METRICS, Comparison, compare_pairs, compared_metric
from analysis.comparison.pairs import Pairing, pair_runs
from analysis.comparison.shown import compare
from analysis.comparison.sides import read_side, read_sides

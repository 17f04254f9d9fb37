"""A machine's roofs: the most FLOP/s in each math mode and the most bytes/s that it sustains."""

from bench.roofs.cache_roofs import measure_cache_roofs
from bench.roofs.measure import measure_ceilings
from bench.roofs.roof_probes import MINIMUM_REPETITIONS, sustained_rate

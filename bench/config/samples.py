"""What a sample is: an image, a sequence of tokens, or whatever a user's own step trains on."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal

Sample = Literal["image", "sequence", "sample"]

#: Metrics of samples in general: each kind may have them under a name of its own.
THROUGHPUT = "throughput_samples_per_s"
ENERGY = "energy_j_per_sample"


def column_noun(sample: Sample) -> str:
    """Return what names of metrics and columns call a sample: image, else sample."""
    return "image" if sample == "image" else "sample"


def rate_metric(sample: Sample) -> str:
    """Return the metric of samples per second."""
    return f"throughput_{rate_column(sample)}"


def rate_column(sample: Sample) -> str:
    """Return what a column of samples per second is called: images_per_s or samples_per_s."""
    return f"{column_noun(sample)}s_per_s"


def energy_metric(sample: Sample) -> str:
    """Return the metric of joules per sample."""
    return f"energy_j_per_{column_noun(sample)}"


def cost_metric(sample: Sample) -> str:
    """Return the metric of what a million samples cost."""
    return f"cost_per_million_{column_noun(sample)}s"


@cache
def own_metric(name: str, sample: Sample) -> str:
    """Return the metric `name` as samples of this kind have it, if it is of samples in general."""
    return {THROUGHPUT: rate_metric(sample), ENERGY: energy_metric(sample)}.get(name, name)


def rate_unit(sample: Sample) -> str:
    """Return the unit of samples per second: images/s, sequences/s or samples/s."""
    return f"{sample}s/s"


def a_sample(sample: Sample) -> str:
    """Return the noun with its article: an image, a sequence or a sample."""
    return f"{'an' if sample == 'image' else 'a'} {sample}"


def common_sample(samples: Iterable[Sample]) -> Sample:
    """Return the kind that all of `samples` are of; of several kinds they are just samples."""
    kinds = set(samples)
    return kinds.pop() if len(kinds) == 1 else "sample"

"""The machines of a report, one column each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

from analysis.report.table import Column, Table, make_table
from analysis.runs.placed import PlacedRun
from analysis.runs.quantities import three_digits
from bench.records import DeviceInfo, Environment

_FACTS: tuple[tuple[str, Callable[[Environment, DeviceInfo], object]], ...] = (
    ("device", lambda env, dev: dev.name),
    ("backend", lambda env, dev: dev.backend),
    ("device UUID", lambda env, dev: dev.uuid),
    ("device cores", lambda env, dev: dev.cores),
    ("device memory (GB)", lambda env, dev: _giga(dev.memory_bytes)),
    ("last-level cache (MB)", lambda env, dev: _mega(dev.last_level_cache_bytes)),
    ("compute capability", lambda env, dev: dev.compute_capability),
    ("driver", lambda env, dev: dev.driver),
    ("power limit (W)", lambda env, dev: _watts(dev.power_limit_w)),
    ("operating system", lambda env, dev: f"{env.os}, kernel {env.kernel}, {env.machine}"),
    ("processor", lambda env, dev: env.cpu_model),
    ("processor's numbers", lambda env, dev: env.cpu_signature),
    ("processor cores usable", lambda env, dev: env.cpu_cores_usable),
    ("memory (GB)", lambda env, dev: _giga(env.memory_bytes)),
    ("Python", lambda env, dev: env.python),
    ("PyTorch", lambda env, dev: env.torch),
    ("torchvision", lambda env, dev: env.torchvision),
    ("CUDA", lambda env, dev: env.cuda),
    ("cuDNN", lambda env, dev: env.cudnn),
    ("variables", lambda env, dev: env.variables_set),
    ("container", lambda env, dev: env.container),
    ("virtualisation", lambda env, dev: env.virtualization),
    ("cloud", lambda env, dev: env.cloud_provider),
    ("machine type", lambda env, dev: env.cloud_machine_type),
    ("zone", lambda env, dev: env.cloud_zone),
    ("power", lambda env, dev: env.power_source),
    ("commit", lambda env, dev: _commit(env)),
)


def environments_table(number: int, results: Sequence[PlacedRun]) -> Table:
    """Facts in rows, environments in columns; a fact that no machine has is left out."""
    environments = _distinct(results)
    rows = [
        (name, *(fact(environment, environment.device) for environment in environments))
        for name, fact in _FACTS
    ]
    known = [row for row in rows if any(value is not None for value in row[1:])]
    headings = ("", *_headings(environments))
    columns = [
        Column(heading, (heading or "fact",), itemgetter(place), wraps_em=12 if place else 0)
        for place, heading in enumerate(headings)
    ]
    return make_table(number, "environments", "Environments", columns, known)


def _distinct(results: Sequence[PlacedRun]) -> list[Environment]:
    """Environments that differ in a fact shown here."""
    found: dict[tuple[object, ...], Environment] = {}
    for result in results:
        environment = result.record.environment
        if environment is not None:
            facts = tuple(fact(environment, environment.device) for _, fact in _FACTS)
            found.setdefault((environment.label, *facts), environment)
    return list(found.values())


def _headings(environments: Sequence[Environment]) -> list[str]:
    """Labels, numbered where several environments share one."""
    labels = [environment.label for environment in environments]
    return [
        label if labels.count(label) == 1 else f"{label} ({labels[: index + 1].count(label)})"
        for index, label in enumerate(labels)
    ]


def _giga(count_bytes: int | None) -> str | None:
    return None if count_bytes is None else three_digits(count_bytes / 1e9)


def _mega(count_bytes: int | None) -> str | None:
    return None if count_bytes is None else three_digits(count_bytes / 1e6)


def _watts(limit_w: float | None) -> str | None:
    return None if limit_w is None else three_digits(limit_w)


def _commit(environment: Environment) -> str | None:
    if environment.git_commit is None:
        return None
    return environment.git_commit[:12] + (" (changed)" if environment.git_dirty else "")

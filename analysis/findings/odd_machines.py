"""Machines that are not like the others of their kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analysis.comparison.odd_machines import Fleet, fleets
from analysis.findings.report_finding import ReportFinding, rate_of
from analysis.runs.placed import recorded
from analysis.runs.quantities import three_digits
from analysis.runs.run import Run

_MOST_LIKE = 5


def find_odd_machines(runs: Sequence[Run]) -> Iterator[ReportFinding]:
    """Yield a finding for each machine that is odd in some configuration."""
    found = fleets(runs)
    odd: dict[str, list[tuple[Fleet, int]]] = {}
    for fleet in found:
        for place in fleet.odd:
            odd.setdefault(fleet.machines[place].label, []).append((fleet, place))
    for label, places in odd.items():
        fleet, place = max(places, key=lambda one: abs(one[0].ratios[one[1]] - 1))
        others = len(fleet.machines) - len(fleet.odd)
        yield ReportFinding(
            kind="odd machine",
            headline=(
                f"{label} is {_beside(fleet.ratios[place])} than {others} other machines of its "
                f"kind in {_all_of([one.label for one, _ in places])}."
            ),
            evidence=(*(_line(*one) for one in places), *_like_the_others(label, found, places)),
            runs=tuple(
                dict.fromkeys(name for one, at in places for name in one.machines[at].group.names)
            ),
            advice=_what_differs(fleet, place),
        )


def _beside(ratio: float) -> str:
    """`3.9 % slower`."""
    return f"{three_digits(100 * abs(ratio - 1))} % {'slower' if ratio < 1 else 'faster'}"


def _signed(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f} %"


def _all_of(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} more"


def _line(fleet: Fleet, place: int) -> str:
    low, high = fleet.others
    return (
        f"{fleet.label}: {rate_of(fleet.machines[place].group)}, {_signed(fleet.ratios[place])} "
        f"from the others' geometric mean; they lie from {_signed(low)} to {_signed(high)} "
        f"(p {_chance(fleet.chances[place])})"
    )


def _chance(p_value: float) -> str:
    return "< 0.001" if p_value < 0.001 else f"= {p_value:.2g}"


def _like_the_others(
    label: str, found: Sequence[Fleet], odd: Sequence[tuple[Fleet, int]]
) -> Iterator[str]:
    """The configurations in which the machine is not odd."""
    like = [
        f"{fleet.label} ({_signed(fleet.ratios[place])})"
        for fleet in found
        if not any(fleet is one for one, _ in odd)
        for place, machine in enumerate(fleet.machines)
        if machine.label == label
    ]
    if like:
        more = f" and {len(like) - _MOST_LIKE} more" if len(like) > _MOST_LIKE else ""
        yield f"like the others in: {', '.join(like[:_MOST_LIKE])}{more}"


def _what_differs(fleet: Fleet, place: int) -> str:
    """What its records have that no record of another machine has, else where to look."""
    own = _facts(fleet.machines[place].group.runs)
    others = _facts([run for at, one in enumerate(fleet.machines) if at != place
                     for run in one.group.runs])  # fmt: skip
    found = [
        f"{name} {' and '.join(sorted(values))} (others: {' and '.join(sorted(others[name]))})"
        for name, values in own.items()
        if name in others and not values & others[name]
    ]
    if found:
        return f"It differs from all the others in {', '.join(found)}."
    known = (
        f"It does not differ from all the others in {', '.join(own)}"
        if own
        else "Its runs do not say with which software they ran"
    )
    return (
        f"{known}: look at clocks, temperature, cooling and neighbours, and leave it out of what "
        "is to stand for the kind."
    )


def _facts(runs: Sequence[Run]) -> dict[str, set[str]]:
    facts: dict[str, set[str]] = {}
    for run in runs:
        for name, value in run.software.items():
            facts.setdefault(name, set()).add(value)
    for run in recorded(runs):
        if run.record.environment and (limit := run.record.environment.device.power_limit_w):
            facts.setdefault("power limit", set()).add(f"{limit:g} W")
    return facts

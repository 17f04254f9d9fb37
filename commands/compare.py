"""`mlproject compare`: two sets of runs against each other, and a gate for regressions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import click

import commands
from bench.config import rate_column, rate_unit
from bench.errors import UserError
from commands.console.options import OfMetric, Share, WithPrices, argument, option, words_of
from commands.console.output import Answering, Output, Shown

if TYPE_CHECKING:
    from analysis.comparison import Comparison, Pairing
    from analysis.comparison.judgement import Across, Gate
    from analysis.comparison.machines import Prices
    from analysis.figures import Chart
    from analysis.presentation.table import Table
    from analysis.runs.run import Run

#: Columns of two machines by their first keys: those that name a row, and those that the table of
#: the comparison has already.
_NAMES = {"arch", "precision", "batch_size"}
_RATES = [f"{side}{rate_column(of)}" for of in ("image", "sample") for side in ("", "reference_")]
_SHOWN_ALREADY = ("env", "ratio", "ratio_low", "verdict", "runs", *_RATES)
#: A side that names a machine.
_MACHINE = re.compile(r"\b(env|device)\b")
_NO_DIFFERENCE = "no setting: the same configurations in two sets of runs"


def _reasons(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> frozenset[str]:
    from analysis.comparison.judgement import DEFAULT_REASONS, REASONS

    words = words_of(*REASONS, "worse", "none")(context, parameter, given)
    if "none" in words and len(words) > 1:
        raise UserError(f"fail-on={','.join(words)!r}: none stands alone")
    reasons = {"slower" if word == "worse" else word for word in words or DEFAULT_REASONS}
    return frozenset(reasons - {"none"})


class Compare(OfMetric, WithPrices, Shown, Answering):
    """Compare two sets of runs, and fail where the second is slower.

    A and B are each short forms with commas between them, such as env=gcp-l4,arch=resnet18 (env,
    device, campaign, arch, precision, batch_size, verdict, run, records, baseline, any setting),
    run ids or an MLflow filter. Invalid runs are left out, suspect ones are named. Runs
    are paired where they agree in all settings that A and B share; a batch size is compared with
    the same one alone. Of two machines, or with a price, shares of the roof and of the peak, energy
    and cost stand beside the speed. With --aa there is no B: halves of A's repeats are compared
    with each other, and nothing fails.

    It ends with 1 where the gate fails: B is slower (or worse) somewhere, or a configuration of A
    crashed or is missing in B, or what --fail-on names. A comparison of single runs decides
    nothing, so only --fail-on undecided makes it fail. It ends with 4, and judges nothing, where A
    and B ran on other machines or with other versions, unless --across says that this is meant.
    --least-of-roof is a gate that needs no second side and does not drift: a share of the machine's
    own roof.
    """

    a: str = argument()
    b: str | None = argument(required=False)
    aa: bool = option("the noise floor of A alone: the smallest change that its repeats can show")
    threshold: Share = option("share by which B must differ to count as faster or slower", 0.02)
    least_of_roof: Share | None = option(
        "end with 1 where a configuration of B, or of A without B, is below this share of its "
        "roof; with 2 where a share is not known",
        None,
    )
    across: tuple[Literal["machine", "versions"], ...] = option(
        "a difference of the sides that is meant, versions of torch, CUDA or driver (may be given "
        "again); machines are where both sides name theirs",
        (),
    )
    fail_on: tuple[str, ...] = option(
        "end with 1 where a configuration of B is slower (or worse), crashed, missing or "
        "undecided; words with commas between them, or none  [default: slower,crashed,missing]",
        callback=_reasons,
        metavar="WORDS",
    )

    def _result(self) -> Output:
        from analysis.comparison import compare_pairs, pair_runs
        from analysis.comparison.judgement import NOT_COMPARABLE, comparable, judge_gate
        from analysis.comparison.shown import RUN_IDS, comment, comparison_table, notes

        prices = self.prices()
        if self.aa:
            return self._noise_floor(prices)
        if self.b is None and self.least_of_roof is None:
            raise UserError(
                f"B is missing: compare {self.a!r} with what? (--aa and --least-of-roof take one "
                "side)"
            )
        if self.b is None:
            _, (runs,) = self.read(self.a)
            below = self._below_roof(runs)
            return Output(
                self._roof_lines(below), {"below_roof": below}, exit_code=int(bool(below))
            )
        metric, (a, b) = self.read(self.a, self.b)
        pairing = pair_runs(a, b, metric.name)
        both_name_machines = all(map(_MACHINE.search, (self.a, self.b)))
        meant: set[Across] = {*self.across, *(("machine",) if both_name_machines else ())}
        found = comparable(compare_pairs(pairing.pairs, metric, threshold=self.threshold), meant)
        gate, below = judge_gate(found, pairing, frozenset(self.fail_on)), self._below_roof(b)
        table = comparison_table(found, pairing)
        machines, facts = _machines((a, b), found, pairing, prices) or (None, None)
        unlike = commands.NOT_COMPARABLE if NOT_COMPARABLE in gate.counts else 0
        difference = ", ".join(pairing.differing) or _NO_DIFFERENCE
        opening = f"{table.title}; A and B differ in {difference}"
        parts: list[Table | str] = [opening, replace(table.without(*RUN_IDS), title="")]
        markdown = comment(found, pairing, gate, sides=(self.a, self.b), threshold=self.threshold)
        if machines and facts:
            beside = replace(machines.without(*RUN_IDS), title="")
            brief = beside.without(*_SHOWN_ALREADY)
            parts += [brief] if {column.keys[0] for column in brief.visible} - _NAMES else []
            parts += facts["notes"]
            markdown += "\n" + Output([beside, *facts["notes"]]).text("markdown")

        def charts() -> Mapping[str, Chart]:
            from analysis.figures.rows import comparison_chart

            return {"comparison": comparison_chart(found, self.threshold)}

        return Output(
            [*parts, *notes(found, pairing), gate.sentence, *self._roof_lines(below)],
            _facts(found, pairing, gate)
            | {"machines": facts}
            | ({} if self.least_of_roof is None else {"below_roof": below}),
            [table, machines] if machines else [table],
            charts,
            markdown,
            1 if gate.failed or below else unlike if self.fail_on else 0,
        )

    def _below_roof(self, runs: Sequence[Run]) -> Mapping[str, tuple[float, float]]:
        from analysis.comparison.judgement import below_roof

        return {} if self.least_of_roof is None else below_roof(runs, self.least_of_roof)

    def _roof_lines(self, below: Mapping[str, tuple[float, float]]) -> list[str]:
        from analysis.presentation.words import percent_interval

        if self.least_of_roof is None:
            return []
        least = f"{100 * self.least_of_roof:g} % of its roof"
        lines = [f"below {least}: {one}, {percent_interval(*below[one])}" for one in below]
        return lines or [f"no configuration is below {least}"]

    def _noise_floor(self, prices: Prices) -> Output:
        """How much the repeats of A scatter by the metric, by default their rate."""
        from analysis.comparison.machines import noise_floor
        from analysis.presentation.columns import C, table
        from analysis.presentation.words import percent

        if self.b is not None:
            raise UserError(f"aa: takes one side, not also {self.b!r}")
        if prices:
            raise UserError("aa: the noise floor has no cost; leave out --price and --prices")
        metric, (runs,) = self.read(self.a)
        floor = noise_floor(runs, metric, threshold=self.threshold)
        several = len(floor["configurations"]) > 1
        rows = [*floor["configurations"], *(floor["machines"] if several else ())]
        title = f"Scatter of repeats by {metric.name}, and the smallest change that is found"
        lines = [
            f"smallest change: found in {percent(floor['power'])} of comparisons of these "
            f"configurations; changes count from {percent(self.threshold)} on",
            f"halves of these runs: in {floor['failed']} of {floor['halvings']} comparisons "
            f"something was called {metric.words[1]}",
            *(f"one repeat, which shows no scatter: {label}" for label in floor["single"]),
        ]
        shown = (C.configuration_of, C.repeats, C.scatter, C.scatter_interval, C.change_3,
                 C.change_5, C.change_10, C.change_20, C.called_different)  # fmt: skip
        return Output([table("noise_floor", title, rows, shown), *lines], floor)


def _facts(found: Sequence[Comparison], pairing: Pairing, gate: Gate) -> dict[str, Any]:
    from analysis.comparison.shown import in_doubt
    from analysis.runs.groups import difference_between

    alone: dict[str, list[str]] = {}
    for name, verdict in (("crashed",) * 2, ("only_a", "only in A"), ("only_b", "only in B")):
        own = [one for one in pairing.alone if one.verdict == verdict]
        alone[name] = [one.group.label for one in own]
        alone[f"why_{name}"] = [one.because for one in own]
    passed = {"passed": not gate.failed, "failed": list(gate.failed), "counts": dict(gate.counts)}
    return {
        "gate": passed,
        "told_apart_by": list(pairing.differing),
        "also_differs": list(pairing.software),
        "comparisons": [
            {
                "configuration": one.label,
                "ran_with": one.also_differs({*pairing.differing, "env", "device"}),
                "a_runs": list(one.a.names),
                "b_runs": list(one.b.names),
                **one.facts,
                "account_gain_s": differ.gains_s if differ else None,
                **{
                    f"{side}_gains": [gain for run in group.runs for gain in run.gains]
                    for side, group in (("a", one.a), ("b", one.b))
                },
            }
            for one in found
            for differ in [difference_between(one.a.runs, one.b.runs)]
        ],
        **alone,
        "left_out": list(pairing.left_out),
        "in_doubt": in_doubt(found),
    }


def _machines(
    sides: tuple[Sequence[Run], Sequence[Run]],
    found: Sequence[Comparison],
    pairing: Pairing,
    prices: Prices,
) -> tuple[Table, dict[str, Any]] | None:
    """The table and the facts of two machines, where the sides differ in it or a price is given."""
    from analysis.comparison.across import mean_row, pair_machines, used_prices
    from analysis.comparison.judgement import RATES
    from analysis.comparison.machines import machine_names
    from analysis.report.run_tables import shared_table
    from analysis.runs.groups import Runs, sample_of

    if prices and pairing.metric not in RATES:
        unit = rate_unit(sample_of(sides[0]))
        raise UserError(f"--price: a cost follows from {unit}; leave out --metric {pairing.metric}")
    differ = prices or {"env", "device"} & set(pairing.differing)
    if pairing.metric not in RATES or not found or not differ:
        return None
    runs = Runs((*sides[0], *sides[1]))
    prices.check_names(name for run in runs for name in machine_names(run))
    a, b = (", ".join(sorted({run.env for run in side if run.outcome == "ok"})) for side in sides)
    pair = pair_machines(a, b, found, runs.spilled, prices, pairing.differing)
    title = f"B ({b}) against A ({a}): speed, efficiency, energy, cost of 1e6 {pair.sample}s"
    table = shared_table([pair], ("A", "B"), "machines", title)
    lines = [*filter(None, [pair.times_as_fast("A", "B")])]
    lines += dict.fromkeys(f"price of {price.machine}: {price}" for _, price in used_prices([pair]))
    mean = mean_row(pair.counted)
    return table, {
        **{"a": a, "b": b},
        **{f"mean_{name}": mean.get(name) for name in ("ratio", "ratio_low", "ratio_high")},
        "mean_covers": mean["estimate"].scope if mean else None,
        "configurations_in_mean": len(pair.counted),
        "cost_ratio": mean.get("cost_ratio"),
        "configurations": table.facts()[: len(pair.rows)],
        "missing": [{"a": row["reference_missing"], "b": row["missing"]} for row in pair.rows],
        "notes": lines,
    }

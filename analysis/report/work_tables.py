"""The report's tables of what a step must do, and of where each run stands under its roof."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.report.run_numbers import RunNumbers
from analysis.report.table import Column, Table, make_table, quantity, share_of
from analysis.report.tables import RUN_NUMBER, bound_word
from analysis.runs.placed import PlacedRun
from analysis.runs.quantities import interval, percent_interval
from bench.records import Complexity


def complexity_table(number: int, results: Sequence[PlacedRun], numbers: RunNumbers) -> Table:
    """Work, traffic and memory of one training step, once per model, batch size and precision."""
    found: dict[tuple[str, int, int, str], tuple[Complexity, list[str]]] = {}
    for result in results:
        one = result.record.complexity
        if one is not None:
            key = (one.arch, one.image_size, one.batch_size, one.precision)
            found.setdefault(key, (one, []))[1].append(result.name)
    rows = [found[key] for key in sorted(found)]
    columns = (
        Column("model", ("arch",), lambda c: c[0].arch),
        Column("pixels", ("image_size",), lambda c: c[0].image_size, numeric=True),
        Column("batch", ("batch_size",), lambda c: c[0].batch_size, numeric=True),
        Column("precision", ("precision",), lambda c: c[0].precision),
        quantity("M parameters", "parameters_million", lambda c: c[0].parameters / 1e6),
        quantity("M activations an image", "activations_million_per_image",
                 lambda c: c[0].activations / 1e6),
        quantity("forward GMAC an image", "forward_gmac_per_image",
                 lambda c: c[0].forward_macs / c[0].batch_size / 1e9),
        quantity("step GFLOP an image", "step_gflop_per_image",
                 lambda c: c[0].step_flops_per_image / 1e9),
        quantity("GB a step, compulsory", "compulsory_gb", lambda c: c[0].compulsory_bytes / 1e9),
        quantity("fused", "fused_gb", lambda c: c[0].fused_bytes / 1e9),
        quantity("eager", "eager_gb", lambda c: c[0].eager_bytes / 1e9),
        quantity("weights GB", "weights_gb", lambda c: c[0].memory.weights_bytes / 1e9),
        quantity("gradients", "gradients_gb", lambda c: c[0].memory.gradients_bytes / 1e9),
        quantity("optimizer", "optimizer_gb", lambda c: c[0].memory.optimizer_bytes / 1e9),
        quantity("activations", "activations_gb", lambda c: c[0].memory.activations_bytes / 1e9),
        Column("runs", ("runs",), lambda c: " ".join(c[1]),
               lambda names: numbers.words(names.split())),
    )  # fmt: skip
    title = "Work, traffic and memory of one training step by the cost model"
    return make_table(number, "complexity", title, columns, rows)


_POINTS = (
    RUN_NUMBER,
    Column("configuration", ("label",), lambda r: r.label, wraps_em=12),
    Column("arithmetic", ("math_mode",), lambda r: r.point.math_mode),
    quantity("attained GFLOP/s", "attained_gflop_per_s",
             lambda r: r.point.attained_flops_per_s / 1e9),
    Column("attainable", ("attainable_min_gflop_per_s", "attainable_max_gflop_per_s"),
           lambda r: (r.point.attainable_min_flops_per_s / 1e9,
                      r.point.attainable_max_flops_per_s / 1e9),
           lambda ends: interval(*ends), numeric=True),
    quantity("ridge FLOP/byte", "ridge_flop_per_byte", lambda r: r.point.ridge_flop_per_byte),
    Column("of the roof", ("fraction_of_roof_min", "fraction_of_roof_max"),
           lambda r: (r.point.fraction_of_roof_min, r.point.fraction_of_roof_max),
           lambda ends: percent_interval(*ends), numeric=True),
    share_of("of the peak", "fraction_of_peak", lambda r: r.point.fraction_of_peak),
    Column("bound", ("bound",), bound_word),
    Column("roof", ("ceiling_kind",), lambda r: r.point.ceiling.kind),
    # The table of ceilings tells each source once; here it would take most of the page.
    Column("of", ("ceiling_date", "ceiling_source"),
           lambda r: (r.point.ceiling.date, r.point.ceiling.source), lambda of: of[0][:10]),
)  # fmt: skip


def points_table(number: int, results: Sequence[PlacedRun]) -> Table:
    """Every placed run under its own roof."""
    placed = [result for result in results if result.point]
    return make_table(number, "points", "Places under the roof", _POINTS, placed)

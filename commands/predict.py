"""`mlproject predict`: samples/s at a batch size that was not measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bench.config import a_sample, rate_unit
from commands.console.options import Count, WantedRecords, option
from commands.console.output import Answering, Result, Shown

if TYPE_CHECKING:
    from analysis.prediction import Prediction


class Predict(WantedRecords, Shown, Answering):
    """Predict the throughput at a batch size that was not measured.

    It has an interval. Also prints the model's error at each measured batch size when it is fitted
    without it. A batch that memory does not hold, or may not hold, is refused.
    """

    arch: str = option("the model", required=True)
    precision: str | None = option("needed where several were measured")
    env: str | None = option("label of the machine; needed where several were measured")
    seq_len: Count | None = option("tokens of a sequence; needed where several were measured")
    batch_size: tuple[Count, ...] = option("what to predict (may be given again)", required=True)

    def _result(self) -> Result:
        runs = self.read_records().runs()
        from analysis.prediction import choose_curve, predict_batch

        curve = choose_curve(runs, self.arch, self.precision, self.env, self.seq_len)
        found = [predict_batch(curve, batch_size, runs) for batch_size in self.batch_size]
        of = found[0].curve
        known = {"held_out": dict(of.held_out), "runs": list(of.runs)}
        return Result(list(_lines(found)), [{**one.facts, **known} for one in found])


def _lines(found: Sequence[Prediction]) -> Iterator[str]:
    from analysis.words import interval, percent, three_digits

    for one in found:
        rate = f"{three_digits(one.samples_per_s)} {rate_unit(one.of.sample)}"
        span = interval(*one.interval)
        yield f"{one.of.series} batch {one.batch_size}: {rate} (95 %: {span})"
        yield f"    memory: {one.memory}"
    curve = found[0].curve
    errors = ", ".join(f"batch {batch} by {100 * error:+.1f} %" for batch, error in curve.held_out)
    yield (
        f"model: {three_digits(1e3 * curve.model.fixed_s)} ms a step and "
        f"{three_digits(1e3 * curve.model.per_sample_s)} ms {a_sample(found[0].of.sample)}"
    )
    yield f"held out: missed by {percent(curve.held_out_error)} ({errors})"
    yield f"runs: {' '.join(curve.runs)}"

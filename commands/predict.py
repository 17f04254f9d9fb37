"""`mlproject predict`: samples/s on a device, or at a batch size, that was not measured."""

from __future__ import annotations

from itertools import product
from typing import Any

from bench.config import parse_config
from bench.errors import UserError
from commands.console.options import Count, WantedRecords, WithPeaks, WithPrices, option
from commands.console.output import Answering, Output, Shown


class Predict(WantedRecords, WithPrices, WithPeaks, Shown, Answering):
    """Predict the throughput of what was not measured.

    With --on, on a device that one does not have, from the shares of their roofs that ops reach
    elsewhere; the account of the step, its memory and what it rests on stand below. Runs of one's
    own correct the shares where --records, --campaign, --filter or --experiment choose some. A
    model that does not fit into memory, and one whose ops no timing supports, are refused.

    Without --on, at another batch size of a measured machine: with the model's error at each
    measured batch size when it is fitted without it. A batch that memory does not hold, or may not
    hold, is refused. With --devices the exchange of gradients is added, by the link that `mlproject
    ceilings --devices` measured.
    """

    arch: str = option("the model", required=True)
    batch_size: tuple[Count, ...] = option("what to predict (may be given again)", required=True)
    on: tuple[str, ...] = option(
        "a device's name as its driver gives it, such as 'NVIDIA L4', or a machine's label in the "
        "records (may be given again)",
        metavar="DEVICE",
    )
    precision: str | None = option(
        "needed where several were measured; with --on, fp32 unless given"
    )
    env: str | None = option("label of the machine; needed where several were measured")
    seq_len: Count | None = option("tokens of a sequence; needed where several were measured")
    devices: Count = option("so many devices of that machine, a batch for each", 1)
    image_size: Count | None = option("with --on: pixels a side; the model's own by default")

    def _result(self) -> Output:
        if self.on:
            return self._elsewhere()
        for name in ("image_size", "price", "prices_file", "peaks_file"):
            if name in self.given:
                raise UserError(f"--{name.split('_file')[0].replace('_', '-')}: is for --on alone")
        records = self.read_records()
        runs = records.runs()
        from analysis.prediction.batch_size import choose_curve, predict_batch
        from analysis.prediction.several_devices import predict_devices

        of_one = [run for run in runs if self.devices == 1 or run.config.world_size == 1]
        curve = choose_curve(of_one, self.arch, self.precision, self.env, self.seq_len)
        found: list[Any] = [predict_batch(curve, size, runs) for size in self.batch_size]
        fitted = found[0].curve
        if self.devices > 1:
            of_records = self.devices, runs, records.ceilings
            found = [predict_devices(prediction, *of_records) for prediction in found]
        known = {"held_out": dict(fitted.held_out), "runs": list(fitted.runs)}
        lines = [line for prediction in found for line in prediction.lines()]
        return Output(
            [*lines, *fitted.lines()], [{**prediction.facts, **known} for prediction in found]
        )

    def _elsewhere(self) -> Output:
        """Predict each batch size on each device."""
        if self.env is not None:
            raise UserError(f"--env {self.env!r}: name the machine with --on")
        if self.devices > 1:
            raise UserError(f"--devices {self.devices}: is of a measured machine; leave out --on")
        sizes = {"image_size": self.image_size or "auto", "seq_len": self.seq_len or "auto"}
        named = {"arch": self.arch, "precision": self.precision or "fp32", **sizes}
        configs = [parse_config({**named, "batch_size": size}) for size in self.batch_size]
        from analysis.prediction.device import fastest_loader, find_target, own_runs, predict_on
        from bench.cost import cached_ops

        asked = {"folders", "campaign", "filter_string", "experiments"} & self.given
        records, peaks = self.read_records() if asked else None, self.peaks()
        prices = self.prices() if self.price or self.prices_file else None
        if prices:
            prices.check_names(self.on)
        own = own_runs(records.runs(peaks), cached_ops) if records else []
        loader = fastest_loader(records.measurements) if records else None
        found, refused = [], []
        for name, config in product(self.on, configs):
            try:
                target = find_target(name, config.precision, records, peaks)
                found.append(predict_on(target, config, cached_ops, own, prices, loader))
            except UserError as error:
                refused.append(f"{error}")
        if not found:
            raise UserError("; ".join(dict.fromkeys(refused)))
        for reason in dict.fromkeys(refused):
            self.say(f"not predicted: {reason}")
        lines = [line for prediction in found for line in prediction.lines()]
        return Output(lines, [prediction.facts() for prediction in found])

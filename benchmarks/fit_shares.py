"""Fits the shares of `analysis.shares` to published times, and says how far they miss.

`python benchmarks/fit_shares.py FOLDER` reads the folder's op times (`bmm.csv.gz` and others),
steps of transformers (`whole_models_ms.csv`) and of CNNs (`cnn_training_s.csv`); docs/results.md
says where they are from. Beside the folder, `published_runs.csv` has runs in PyTorch. Each chip is
left out once; chips without op times never enter a fit. `--out` writes the fitted numbers.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import random
import re
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize

from analysis.roofs.roof import Peaks, datasheet_peaks, normalised
from analysis.shares import (
    KINDS,
    PRODUCTS,
    UNPROVEN,
    Chip,
    Kernels,
    datasheet_reach,
    kernel_times_s,
)
from analysis.shares import kernels_of as kernels_of_ops
from bench.cost import cached_ops
from bench.records import StepSpec

#: Where a share starts, and what it is drawn to: how far, as a standard deviation of its logarithm.
PRIOR: dict[str, tuple[float, float]] = {
    "compute": (0.92, 0.3), "many_lanes": (0.92, 0.1), "slot_powered": (0.6, 0.3),
    "memory": (0.85, 0.3), "fill_length": (40, 0.7), "tile_64": (0.93, 0.3),
    "tile_32": (0.85, 0.3), "product_bytes": (0.85, 0.3), "batched product": (1, 0.3),
    "convolution": (0.9, 0.3), "input gradient": (0.9, 0.3), "weight gradient": (0.8, 0.3),
    "winograd": (0.8, 0.3), "winograd_bytes": (0.5, 0.5), "softmax": (0.72, 0.3),
    "layer norm": (0.6, 0.3), "batch norm": (0.7, 0.3), "sum": (0.7, 0.3),
    "depthwise": (0.4, 0.5), "kernel_s": (3e-6, 0.5),
    # of TensorFlow, and used here alone
    "tf_call_s": (3e-5, 1), "tf_step_s": (2e-3, 1), "tf_depthwise": (0.1, 1),
    "tf_batch_norm": (0.5, 0.5),
}  # fmt: skip
_NAMES = [*PRIOR]
#: Devices differ from each other, and op times from those within a model, by about this much.
_OF_COMPUTE, _OF_MEMORY, _OF_HEAT = 0.10, 0.08, 0.15
#: The scatter of logarithms that each source is taken to have, and how many of it count.
_WEIGHTS = {"op": (0.2, 12.0), "pass": (0.1, 8.0), "transformer": (0.05, 3.5), "cnn": (0.15, 5.0),
            "torch": (0.1, 2.0)}  # fmt: skip
#: An H200's measured roofs over its datasheet's (docs/results.md, One GPU).
_H200 = {"compute": 53.4 / 66.9, "memory": 4356 / 4800}
#: The dies that TensorFlow's steps ran on; 28 nm boards of two dies each.
_DIES = [
    Peaks(devices="Tesla M60 (one of two dies)", fp32_tflop_per_s=4.825, memory_gb_per_s=160,
          source="NVIDIA Tesla M60 product brief", processors=16, fp32_lanes_per_scheduler=32,
          board_w=150, memory_gb=8),
    Peaks(devices="Tesla K80 (one of two dies)", fp32_tflop_per_s=4.37, memory_gb_per_s=240,
          source="NVIDIA Tesla K80 board specification", processors=13,
          fp32_lanes_per_scheduler=32, board_w=150, memory_gb=12),
]  # fmt: skip
_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "bert_large": {"model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24,
                   "num_attention_heads": 16, "intermediate_size": 4096},
    "gpt2_large": {"model_type": "gpt2", "n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt3_xl": {"model_type": "gpt2", "n_embd": 3072, "n_layer": 24, "n_head": 24,
                "n_positions": 2048},
    "gpt3_27": {"model_type": "gpt2", "n_embd": 2560, "n_layer": 32, "n_head": 32,
                "n_positions": 2048},
    "opt_13": {"model_type": "opt", "hidden_size": 2048, "num_hidden_layers": 24,
               "num_attention_heads": 32, "ffn_dim": 8192, "max_position_embeddings": 2048,
               "vocab_size": 50272, "word_embed_proj_dim": 2048},
}  # fmt: skip
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop",
             "attn_pdrop", "dropout", "attention_dropout")  # fmt: skip
_CNNS = {
    "ResNet18": "resnet18", "ResNet50": "resnet50", "VGG11": "vgg11", "VGG16": "vgg16",
    "VGG19": "vgg19", "MobileNetV2": "mobilenet_v2",
}  # fmt: skip
_SOURCE = (
    "op times of NeuSight (ASPLOS 2025, MIT) and CNN steps of PROFET (CCGrid 2023, MIT), published "
    "runs, and an H200 of this project; benchmarks/fit_shares.py"
)
#: Below, a step of TensorFlow is its host's time, and a VGG of it has another classifier.
_LEAST_PIXELS = 128


@dataclass(frozen=True)
class Timed:
    """Kernels on one device that took `time_s` together; `of` is a key of `_WEIGHTS`."""

    of: str
    device: str
    name: str
    time_s: float
    kernels: Kernels
    training: bool = True

    @property
    def chip(self) -> str:
        """The chip, whose boards are left out together."""
        found = re.search(r"\b(MI\d+|[A-Z]{1,2}\d+)", self.device)
        return found[1] if found else self.device

    @property
    def group(self) -> tuple[str, str]:
        """The row of the table that it belongs to."""
        alone = " of MobileNetV2" if self.name.startswith("MobileNet") else ""
        return self.device, f"{self.of} {'training' if self.training else 'inference'}{alone}"


def device_table() -> dict[str, Peaks]:
    """Return the datasheets of all devices that shares can be held against."""
    rows = [*datasheet_peaks(), *_DIES]
    return {name: row for row in rows if row.processors for name in row.names}


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        yield from csv.DictReader(file)


_NONE4, _NONE5 = (0.0,) * 4, (0.0,) * 5


def _op_row(row: Mapping[str, str], name: str) -> tuple[Any, ...]:
    """A timing's kernel, as `Kernels.of` takes it."""
    if name == "conv":
        keys = ("B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size", "Padding")
        images, channels, filters, side, pixels, _ = (int(row[key]) for key in keys)
        area, rows = side * side, images * pixels * pixels
        tiles = images * (-(-pixels // 4)) ** 2
        flops = 2.0 * rows * filters * channels * area
        moved = 4.0 * (rows * (channels + filters) + channels * filters * area)
        winograd = (36, tiles, filters, channels, 2 * 4.0 * 36 * tiles * (channels + filters))
        return "convolution", (1, rows, filters, channels * area), flops, moved, winograd, 1, 0
    if name in ("bmm", "linear"):
        batch, rows, columns, summed = (int(row[key]) for key in "BMNK")
        moved = 4.0 * batch * (rows * columns + rows * summed + summed * columns)
        kind = "product" if name == "linear" else "batched product"
        sizes = (batch, rows, columns, summed)
        return kind, sizes, 2.0 * batch * rows * columns * summed, moved, _NONE5, 1, 0
    kinds = {"softmax": "softmax", "ln": "layer norm"}
    moved = 4.0 * int(row["B"]) * int(row["H"]) * (3 if name == "mul" else 2)
    return kinds.get(name, "elementwise"), _NONE4, 0, moved, _NONE5, 1, 0


def read_op_times(folder: Path, most: int) -> Iterator[Timed]:
    """Yield timings long enough to show more than a launch, `most` of each op and device."""
    for name in ("bmm", "linear", "conv", "softmax", "ln", "mul", "gelu"):
        of_device = defaultdict(list)
        for row in _rows(folder / f"{name}.csv.gz"):
            if float(row["Latency"]) > 0.15:
                of_device[row["Device"]].append(row)
        for device, rows in of_device.items():
            for row in random.Random(0).sample(rows, min(most, len(rows))):
                kernels = Kernels.of([_op_row(row, name)])
                of = "op" if name in ("bmm", "linear", "conv") else "pass"
                yield Timed(of, device, name, float(row["Latency"]) / 1e3, kernels)


def _step(spec: StepSpec, phases: Sequence[str], *, loss: bool = True) -> Kernels:
    ops = [op for op in cached_ops(spec).ops if op.phase in phases]
    if not loss:  # computed between the two timings
        ops = [op for op in ops if op.phase != "forward" or not re.search("log_soft|nll", op.op)]
    return kernels_of_ops(ops)


def read_transformers(folder: Path, configs: Path) -> Iterator[Timed]:
    """Yield the transformers' steps: forward and backward pass, attention op by op."""
    for row in _rows(folder / "whole_models_ms.csv"):
        name, mode = row["model"], row["mode"]
        if row["option"] or name not in _TRANSFORMERS:
            continue
        config = {**_TRANSFORMERS[name], "_attn_implementation": "eager"}
        config |= dict.fromkeys(_DROPOUTS, 0.0) if mode == "inf" else {}
        path = configs / f"{name}-{mode}.json"
        path.write_text(json.dumps(config))
        head = "causal-lm"
        if name.startswith("bert"):
            head = "masked-lm" if mode == "train" else "sequence-classification"
        spec = StepSpec(f"hf:{path}:{head}", int(row["batch"]), "fp32",
                        seq_len=int(row["seqlen"]), backend="cuda")  # fmt: skip
        phases = ("forward", "backward") if mode == "train" else ("forward",)
        kernels = _step(spec, phases, loss=False)
        time_s = float(row["e2e_latency"]) / 1e3
        case = f"{name} {mode} {spec.seq_len} {spec.batch_size}"
        yield Timed("transformer", row["device"], case, time_s, kernels, mode == "train")


def read_cnns(folder: Path) -> Iterator[Timed]:
    """Yield TensorFlow's steps of models that torchvision has too."""
    for row in _rows(folder / "cnn_training_s.csv"):
        name, pixels = row["model"], int(row["image_size"])
        if name not in _CNNS or pixels < _LEAST_PIXELS:
            continue
        spec = StepSpec(_CNNS[name], int(row["batch_size"]), "fp32", pixels, backend="cuda")
        kernels = _step(spec, ("forward", "backward", "optimizer"))
        case = f"{name} {pixels} {spec.batch_size}"
        yield Timed("cnn", row["device"], case, float(row["step_time_s_median"]), kernels)


#: This project's runs on an H200, under its measured roofs (docs/results.md, One GPU).
_H200_RUNS = {"fp32": (("resnet50", 64, 941), ("vgg16", 64, 659)),
              "amp": (("resnet50", 256, 4728), ("vgg16", 64, 3243))}  # fmt: skip
_H200_CHIPS = {"fp32": Chip(53.4e12, 4356e9, 53.4e12, 132),
               "amp": Chip(706e12, 4356e9, 706e12, 132, fp32=False)}  # fmt: skip
#: Its resnet18 at batch 8 waits for the host: seconds of a step, over the calls of ops in it.
_HOST_BOUND = ("resnet18", 8, 794)


def _run_step(arch: str, batch: int, precision: str) -> Kernels:
    spec = StepSpec(arch, batch, precision, backend="cuda")
    return _step(spec, ("forward", "backward", "optimizer"))


def read_runs(path: Path) -> Iterator[Timed]:
    """Yield steps of PyTorch on a T4, whose fp32 is IEEE; one is above what a T4 can compute."""
    for row in _rows(path):
        if row["device"] == "Tesla T4" and row["arch"] != "resnet18":
            batch = int(row["batch_size"])
            kernels = _run_step(row["arch"], batch, "fp32")
            yield Timed("torch", row["device"], row["arch"], batch / float(row["images_per_s"]),
                        kernels)  # fmt: skip


def tensor_runs(
    path: Path, known: Mapping[str, float], table: Mapping[str, Peaks]
) -> Iterator[tuple[str, float, float, float]]:
    """Yield the device of each run on tensor cores, and its seconds: of products, others, measured.

    Their convolutions in `fp32` are in tf32, PyTorch's default there. What spilled is left out.
    """
    for row in _rows(path):
        name, batch, mode = row["device"], int(row["batch_size"]), row["precision"]
        part = next((one for one in table if one == normalised(name)), None)
        spilled = batch > (64 if row["arch"] == "vgg16" and mode == "fp32" else 128)
        laptop = "Laptop" in name and "4090" in name
        if part is None or not ("L4" in name or (laptop and not spilled)):
            continue
        peaks = table[part]
        reach = datasheet_reach(peaks, known)
        peak = peaks.flops_per_s["tf32" if mode == "fp32" else "bf16"]
        chip = Chip(peak * reach[0], peaks.bytes_per_s * reach[1], peak, peaks.processors,
                    fp32=False)  # fmt: skip
        kernels = _run_step(row["arch"], batch, mode)
        yield name, *_split(kernels, chip, known), batch / float(row["images_per_s"])
    for arch, batch, rate in _H200_RUNS["amp"]:
        kernels = _run_step(arch, batch, "amp")
        yield "NVIDIA H200", *_split(kernels, _H200_CHIPS["amp"], known), batch / rate


def _split(kernels: Kernels, chip: Chip, known: Mapping[str, float]) -> tuple[float, float]:
    times = kernel_times_s(kernels, chip, known) * kernels.calls
    is_product = kernels.kind < len(PRODUCTS)
    return float(times[is_product].sum()), float(times[~is_product].sum())


class Fit:
    """A regularised least squares fit of logarithms; devices differ by effects drawn to zero."""

    def __init__(self, timed: Sequence[Timed], table: Mapping[str, Peaks]) -> None:
        self.timed = timed
        self.devices = sorted({one.device for one in timed})
        self.peaks = [table[normalised(name)] for name in self.devices]
        parts = [one.kernels for one in timed]
        self.kernels = Kernels(*(np.concatenate([getattr(part, name) for part in parts])
                                 for name in Kernels.__dataclass_fields__))  # fmt: skip
        self.owner = np.repeat(np.arange(len(timed)), [len(part.kind) for part in parts])
        self.device = np.array([self.devices.index(one.device) for one in timed])
        self.times_s = np.array([one.time_s for one in timed])
        self.of = np.array([one.of for one in timed])
        self.effects = 4 * len(self.devices)

    def predicted_s(self, known: Mapping[str, float], effects: np.ndarray[Any, Any]) -> Any:
        """Return the time of each entry; effects are of compute, memory, heat and launches."""
        compute, memory, heat, launch = effects.reshape(4, -1)
        reach = np.array([datasheet_reach(one, known) for one in self.peaks])
        flops = np.array([one.flops_per_s["fp32"] for one in self.peaks])
        rates = np.array([one.bytes_per_s for one in self.peaks]) * reach[:, 1] * np.exp(memory)
        units = np.array([one.processors for one in self.peaks])
        of, device = self.of[self.owner], self.device[self.owner]
        reached = flops * reach[:, 0] * np.exp(compute)
        chip = Chip(np.where(of == "op", (reached * np.exp(heat))[device], reached[device]),
                    rates[device], flops[device], units[device])  # fmt: skip
        each = kernel_times_s(self.kernels, chip, known)
        for kind in ("depthwise", "batch norm"):
            tf = (of == "cnn") & (self.kernels.kind == KINDS.index(kind))
            each[tf] *= known[kind] / known[f"tf_{kind.replace(' ', '_')}"]
        count, calls = len(self.timed), self.kernels.calls
        total = np.bincount(self.owner, each * calls, count)
        host = np.bincount(self.owner, calls, count) * known["tf_call_s"]
        in_tf = (total**3 + host**3) ** (1 / 3) + known["tf_step_s"]
        launches = 3e-5 * np.exp(launch)[self.device]
        return np.where(
            self.of == "cnn", in_tf, total + np.where(np.isin(self.of, ("op", "pass")), launches, 0)
        )

    def fit(self, start: Mapping[str, float], tries: int) -> tuple[dict[str, float], Any]:
        """Return the shares and the devices' effects."""
        centre = np.log([PRIOR[name][0] for name in _NAMES] + [1.0] * self.effects)
        scale = np.repeat([_OF_COMPUTE, _OF_MEMORY, _OF_HEAT, 0.5], len(self.devices))
        spread = np.concatenate([[PRIOR[name][1] for name in _NAMES], scale])
        weights, soft = np.zeros(len(self.timed)), np.full(len(self.timed), 0.1)
        for of, (scatter, counted) in _WEIGHTS.items():
            chosen = self.of == of
            weights[chosen] = counted / scatter / max(chosen.sum(), 1) ** 0.5
            soft[chosen] = max(scatter, 0.1)

        def residuals(values: Any) -> Any:
            known = self._known(values)
            error = np.log(self.predicted_s(known, values[len(_NAMES) :]) / self.times_s)
            robust = np.sign(error) * soft * np.sqrt(2 * (np.sqrt(1 + (error / soft) ** 2) - 1))
            h200 = [np.log(known["compute"] * known["many_lanes"] / _H200["compute"]) / _OF_COMPUTE,
                    np.log(known["memory"] / _H200["memory"]) / _OF_MEMORY]  # fmt: skip
            return np.concatenate([robust * weights, (values - centre) / spread, h200])

        first = np.concatenate([np.log([start[name] for name in _NAMES]), np.zeros(self.effects)])
        found = optimize.least_squares(residuals, first, x_scale=0.1, diff_step=1e-3,
                                       max_nfev=tries)  # fmt: skip
        return self._known(found.x), found.x[len(_NAMES) :]

    def _known(self, values: Any) -> dict[str, float]:
        found = {name: float(value) for name, value in zip(_NAMES, np.exp(values), strict=False)}
        return found | {UNPROVEN: 0.5}

    def errors(self, known: Mapping[str, float]) -> Any:
        """Return log(predicted / measured) of devices that nothing is known of but datasheets."""
        return np.log(self.predicted_s(known, np.zeros(self.effects)) / self.times_s)

    def roof_errors(self) -> Any:
        """Return the same of the bare roofline: FLOP at the peak or bytes at the memory's."""
        flops = np.array([one.flops_per_s["fp32"] for one in self.peaks])[self.device][self.owner]
        rate = np.array([one.bytes_per_s for one in self.peaks])[self.device][self.owner]
        each = np.maximum(self.kernels.flops / flops, self.kernels.bytes / rate)
        total = np.bincount(self.owner, each * self.kernels.calls, len(self.timed))
        return np.log(total / self.times_s)


#: What the error of a step consists of: that of the device's roofs, which all its ops share, and
#: those of its classes of ops, each by its part of the time.
_PARTS: dict[str, Callable[[Any], Any]] = {
    "product": lambda kind: kind < PRODUCTS.index("convolution"),
    "convolution": lambda kind: (kind >= PRODUCTS.index("convolution")) & (kind < len(PRODUCTS)),
    "depthwise": lambda kind: kind == KINDS.index("depthwise"),
    "pass": lambda kind: (kind >= len(PRODUCTS)) & (kind != KINDS.index("depthwise")),
}


@dataclass(frozen=True)
class HeldOut:
    """Steps on devices that were left out: errors as logarithms, parts of the time by class."""

    steps: Sequence[Timed]
    errors: Any
    roof_errors: Any
    parts: Any

    @property
    def columns(self) -> tuple[Any, Any, Any]:
        """All but the steps themselves."""
        return self.errors, self.roof_errors, self.parts

    def chosen(self, chosen: Any) -> HeldOut:
        """Return those where `chosen` is true."""
        steps = [one for one, is_one in zip(self.steps, chosen, strict=True) if is_one]
        return HeldOut(steps, self.errors[chosen], self.roof_errors[chosen], self.parts[chosen])


def held_out(steps: Sequence[Timed], known: Mapping[str, float], table: Any) -> HeldOut:
    """Return how far shares that were fitted without their devices miss `steps`."""
    fit = Fit(steps, table)
    reach = [datasheet_reach(one, known) for one in fit.peaks]
    of = fit.device[fit.owner]
    flops = np.array([one.flops_per_s["fp32"] for one in fit.peaks])
    rates = np.array([one.bytes_per_s * r[1] for one, r in zip(fit.peaks, reach, strict=True)])
    chip = Chip((flops * [r[0] for r in reach])[of], rates[of], flops[of],
                np.array([one.processors for one in fit.peaks])[of])  # fmt: skip
    each = kernel_times_s(fit.kernels, chip, known) * fit.kernels.calls
    parts = np.array([np.bincount(fit.owner, each * is_one(fit.kernels.kind), len(steps))
                      for is_one in _PARTS.values()]).T  # fmt: skip
    return HeldOut(steps, fit.errors(known), fit.roof_errors(), parts / parts.sum(1)[:, None])


_FIRST_ERRORS = np.log([0.07, 0.05, 0.15, 0.3, 0.1])


def learn_errors(found: HeldOut) -> tuple[dict[str, float], Any]:
    """Return the deviations of the parts of an error, and each step's error over its deviation.

    By maximum likelihood; steps of one device count together as much as those of another.
    """
    devices = [one.device for one in found.steps]
    weights = np.array([1 / devices.count(one) for one in devices])

    def deviation(logs: Any) -> Any:
        device, *classes = np.exp(2 * np.asarray(logs))
        return np.sqrt(device + (found.parts**2) @ np.array(classes))

    def cost(logs: Any) -> float:
        one = deviation(logs)
        drawn = ((np.asarray(logs) - _FIRST_ERRORS) ** 2).sum()
        likely = weights * (np.log(one) + (found.errors / one) ** 2 / 2)
        return float(likely.sum() + drawn / 8)

    best = optimize.minimize(cost, _FIRST_ERRORS, method="Nelder-Mead")
    names = ("device", *_PARTS)
    found_errors = {name: float(value) for name, value in zip(names, np.exp(best.x), strict=True)}
    return found_errors, found.errors / deviation(best.x)


def carried(found: HeldOut) -> float:
    """Return how much of an error on one chip, less the chip's mean, the same step has on another.

    It is a slope through 0.
    """
    of_chip, of_case = defaultdict(list), defaultdict(dict)
    for one, error in zip(found.steps, found.errors, strict=True):
        of_chip[one.of, one.chip].append(error)
    for one, error in zip(found.steps, found.errors, strict=True):
        mean = float(np.mean(of_chip[one.of, one.chip]))
        of_case[one.of, one.name][one.chip] = float(error) - mean
    pairs = [(a, b) for errors in of_case.values() for c, a in errors.items()
             for d, b in errors.items() if c != d]  # fmt: skip
    if not pairs:
        return 0.0
    first, second = np.array(pairs).T
    return float(np.clip((first @ second) / (first @ first), 0, 1))


def _mean_error(errors: Any) -> str:
    return f"{100 * np.abs(np.expm1(errors)).mean():.1f} %" if len(errors) else "-"


def main() -> None:
    """Read, fit, leave each chip out, print the table, and write the numbers if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="file for the fitted numbers, as JSON")
    parser.add_argument("--op-times", type=int, default=250, help="of each op and device")
    asked = parser.parse_args()
    table = device_table()
    with tempfile.TemporaryDirectory() as configs:
        steps = [*read_transformers(asked.folder, Path(configs)), *read_cnns(asked.folder)]
    runs = asked.folder.parent / "published_runs.csv"
    steps += read_runs(runs) if runs.exists() else ()
    ops = [*read_op_times(asked.folder, asked.op_times)]
    unknown = sorted({one.device for one in steps if normalised(one.device) not in table})
    print(f"not in the table of datasheets, left out: {', '.join(unknown) or 'none'}")
    steps = [one for one in steps if normalised(one.device) in table]
    timed = {one.chip for one in ops} | {"M60"}
    fitted = [one for one in (*ops, *steps) if one.chip in timed]
    known, _ = Fit(fitted, table).fit({name: PRIOR[name][0] for name in _NAMES}, 25)
    found: list[HeldOut] = []
    with_roofs: list[float] = []  # the mean error of a chip whose op times alone are known
    for chip in sorted({one.chip for one in steps}):
        others = [one for one in fitted if one.chip != chip]
        without = Fit(others, table).fit(known, 12)[0] if chip in timed else known
        left_out = [one for one in steps if one.chip == chip]
        found.append(held_out(left_out, without, table))
        of_chip = [one for one in ops if one.chip == chip]
        if of_chip:
            first = Fit([*others, *of_chip], table)
            roofs, effects = first.fit(without, 6)
            second = Fit(left_out, table)
            same = [first.devices.index(one) if one in first.devices else None
                    for one in second.devices]  # fmt: skip
            rows = effects.reshape(4, -1)
            moved = np.array([[0.0 if at is None else row[at] for at in same] for row in rows])
            errors = np.log(second.predicted_s(roofs, moved.ravel()) / second.times_s)
            timed_steps = [at is not None for at in same]
            with_roofs.append(errors[np.array(timed_steps)[second.device]].mean())
    columns = [np.concatenate(one) for one in zip(*(each.columns for each in found), strict=True)]
    everything = HeldOut([one for each in found for one in each.steps], *columns)
    proven = np.array([one.chip != "K80" for one in everything.steps])
    everything, others = everything.chosen(proven), everything.chosen(~proven)
    errors, scores = learn_errors(everything)
    errors["measured"] = float(np.sqrt(np.mean(np.square(with_roofs))))
    own = np.concatenate([each.errors - each.errors.mean() for each in found])[proven]
    errors["same_device"] = float(own.std() / np.sqrt(np.mean(everything.errors**2)))
    quantiles = {f"{level}": float(np.quantile(np.abs(scores), level / 100)) for level in (50, 90)}
    shown = [(everything, scores)]
    print("| device left out | steps | how many | mean error | bias | bare roofline | in 90 % |")
    print("|---|---|---|---|---|---|---|")
    for each, score in [*shown, (others, np.full(len(others.errors), np.nan))]:
        keys = [one.group for one in each.steps]
        for key in sorted(set(keys)):
            chosen = np.array([one == key for one in keys])
            inside = (np.abs(score[chosen]) <= quantiles["90"]).mean()
            error = each.errors[chosen]
            print(f"| {key[0]} | {key[1]} | {chosen.sum()} | {_mean_error(error)} | "
                  f"{100 * np.expm1(error.mean()):+.1f} % | "
                  f"{_mean_error(each.roof_errors[chosen])} | {100 * inside:.0f} % |")  # fmt: skip
    usual = [one for one in steps if one.chip in timed and "MobileNet" not in one.name]
    inside = held_out(usual, known, table)
    numbers = {"shares": known, "errors": errors, "quantiles": quantiles,
               "carried": carried(inside)}  # fmt: skip
    if runs.exists():
        numbers = _with_runs(numbers, runs, table)
    print(json.dumps(numbers, indent=1))
    if asked.out:
        kept = {name: float(f"{value:.4g}") for name, value in numbers["shares"].items()
                if not name.startswith("tf_")}  # fmt: skip
        rounded = json.loads(json.dumps(numbers | {"shares": kept}),
                             parse_float=lambda text: float(f"{float(text):.4g}"))  # fmt: skip
        asked.out.write_text(json.dumps({"source": _SOURCE} | rounded, indent=1) + "\n")


def _with_runs(numbers: dict[str, Any], runs: Path, table: Any) -> dict[str, Any]:
    """Add what rests on single runs: tensor cores, fp32 convolutions since 2020, the host."""
    known = numbers["shares"]
    rows = [*tensor_runs(runs, known, table)]
    products, rest, measured = np.array([row[1:] for row in rows]).T
    names = [row[0] for row in rows]
    weights = np.array([1 / names.count(name) for name in names])  # devices count alike
    best = optimize.minimize_scalar(
        lambda log: (weights * np.log((products * np.exp(-log) + rest) / measured) ** 2).sum(),
        bounds=(-2, 1), method="bounded")  # fmt: skip
    known["tensor"] = float(np.exp(best.x))
    predicted = products / known["tensor"] + rest
    error = np.log(predicted / measured)
    for row, each in zip(rows, error, strict=True):
        print(f"tensor cores: {row[0]}: {100 * np.expm1(each):+.0f} %")
    part = products / known["tensor"] / predicted
    numbers["errors"]["tensor"] = float(
        np.sqrt((weights * error**2).sum() / (weights * part**2).sum())
    )
    newer = []
    for arch, batch, rate in _H200_RUNS["fp32"]:
        product, other = _split(_run_step(arch, batch, "fp32"), _H200_CHIPS["fp32"], known)
        newer.append(np.log(product / (batch / rate - other)))
    known["newer_convolution"] = float(np.exp(np.mean(newer)))
    numbers["errors"]["newer_convolution"] = float(np.std(newer, ddof=1) * 1.5)
    arch, batch, rate = _HOST_BOUND
    known["host_call_s"] = batch / rate / float(_run_step(arch, batch, "fp32").calls.sum())
    numbers["errors"] |= {"host": 0.4, UNPROVEN: 0.7}
    return numbers


if __name__ == "__main__":
    main()

"""Fits the shares of `analysis.prediction.shares` to published times, and says how far they miss.

`python research/fit_shares.py FOLDER` reads the folder's op times (`bmm.csv.gz` and others), steps
of transformers (`whole_models_ms.csv`) and of CNNs (`cnn_training_s.csv`), whose sources are in
docs/results.md. Each chip is left out once; those without op times never enter a fit.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import linalg, optimize

from analysis.prediction.shares import (
    KINDS,
    PRODUCTS,
    UNPROVEN,
    Chip,
    Shares,
    batched_tile,
    datasheet_reach,
    kernel_times_s,
    kernels_of,
)
from analysis.roofs import Peaks, datasheet_peaks, normalised
from bench.config import RunConfig
from bench.cost import cached_ops
from bench.records import StepSpec
from bench.records.complexity import CallWork

#: Where a share starts, and how far from there it may be drawn: the deviation of its logarithm.
PRIOR: dict[str, tuple[float, float]] = {
    "compute": (0.92, 0.3), "many_lanes": (0.92, 0.1), "w_per_tflop_nm": (1.25, 0.2),
    "memory": (0.9, 0.3), "inline_ecc": (0.9, 0.1), "fill_length": (40, 0.7),
    "side_64": (0.95, 0.1), "side_32": (0.87, 0.1), "product_bytes": (0.85, 0.3),
    "convolution": (0.9, 0.3), "input gradient": (0.9, 0.3), "weight gradient": (0.8, 0.3),
    "winograd": (0.8, 0.3), "winograd_bytes": (0.5, 0.5), "softmax": (0.72, 0.3),
    "layer norm": (0.6, 0.3), "batch norm": (0.7, 0.3), "sum": (0.7, 0.3),
    "depthwise": (0.4, 0.5), "kernel_s": (3e-6, 0.5),
    # TensorFlow's own
    "tf_call_s": (3e-5, 1), "tf_step_s": (2e-3, 1), "tf depthwise": (0.01, 1),
    "tf batch norm": (0.5, 0.5),
}  # fmt: skip
_NAMES = [*PRIOR]
_BATCH_NORM, _DEPTHWISE = KINDS.index("batch norm"), KINDS.index("depthwise")
#: How far devices differ: compute and memory, op times from those within a model, launches.
_EFFECTS = (0.10, 0.08, 0.15, 0.5)
#: The scatter of logarithms that each source is taken to have, and how many of it count.
_WEIGHTS = {"op": (0.2, 12.0), "pass": (0.1, 8.0), "transformer": (0.05, 3.5), "cnn": (0.15, 5.0),
            "torch": (0.1, 2.0)}  # fmt: skip
_SOURCE = (
    "NeuSight's op times (ASPLOS 2025), PROFET's CNN steps (CCGrid 2023), published runs, an H200"
)
#: Devices that are in no fit: a K80 has no Winograd, and an AMD device other kernels.
_UNLIKE = ("K80", "MI100")
_UNLISTED = [
    Peaks(devices=name, fp32_tflop_per_s=tflop, memory_gb_per_s=gb_s, source="its data sheet",
          processors=units, fp32_lanes_per_scheduler=lanes, board_w=board_w, inline_ecc=has_ecc,
          compute_capability=capability)
    for name, tflop, gb_s, units, lanes, board_w, has_ecc, capability in (
        ("Tesla M60 (one of two dies)", 4.825, 160, 16, 32, 150, True, 5.2),
        ("Tesla K80 (one of two dies)", 4.37, 240, 13, 32, 150, True, 3.7),
        ("AMD Instinct MI100", 46.1, 1228.8, 120, 16, 300, False, None),
    )
]  # fmt: skip
_GPT: dict[str, Any] = {"model_type": "gpt2", "n_positions": 2048}
_BIG: dict[str, Any] = {"num_hidden_layers": 24, "max_position_embeddings": 2048}
_TRANSFORMERS: dict[str, dict[str, Any]] = {
    "bert_large": {**_BIG, "model_type": "bert", "hidden_size": 1024, "num_attention_heads": 16,
                   "intermediate_size": 4096},
    "gpt2_large": {**_GPT, "n_embd": 1280, "n_layer": 36, "n_head": 20},
    "gpt3_xl": {**_GPT, "n_embd": 3072, "n_layer": 24, "n_head": 24},
    "gpt3_27": {**_GPT, "n_embd": 2560, "n_layer": 32, "n_head": 32},
    "opt_13": {**_BIG, "model_type": "opt", "hidden_size": 2048, "num_attention_heads": 32,
               "ffn_dim": 8192, "word_embed_proj_dim": 2048},
}  # fmt: skip
_DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop",
             "attn_pdrop", "dropout", "attention_dropout")  # fmt: skip
_CNNS = {"ResNet18": "resnet18", "ResNet50": "resnet50", "VGG11": "vgg11", "VGG16": "vgg16",
         "VGG19": "vgg19", "MobileNetV2": "mobilenet_v2"}  # fmt: skip
#: Below, a step of TensorFlow is its host's time, and a VGG of it has another classifier.
_LEAST_PIXELS = 128
_LAPTOP = "NVIDIA GeForce RTX 4090 Laptop GPU"
#: Images/s of PyTorch: two students' reports, and this project's H200 (docs/results.md). TF32 is
#: PyTorch's default of convolutions. What spilled, and more than a T4 computes, are left out.
_RUNS = {
    ("Tesla T4", "fp32"): "resnet50 32 111, resnet50 64 117, resnet50 128 120, "
    "mobilenet_v2 128 308",
    ("NVIDIA L4", "tf32"): "mobilenet_v2 128 359.5, resnet50 128 205.64, vgg16 64 148.26",
    ("NVIDIA L4", "amp"): "resnet50 256 382.52",
    (_LAPTOP, "tf32"): "mobilenet_v2 64 928.82, mobilenet_v2 128 861.78, resnet50 64 415.22, "
    "resnet50 128 398.15, vgg16 64 220.2",
    (_LAPTOP, "amp"): "mobilenet_v2 64 1558.85, mobilenet_v2 128 1533.75, resnet50 64 807.54, "
    "resnet50 128 764.5, vgg16 64 399.22, vgg16 128 408.46",
    ("NVIDIA H200", "fp32"): "resnet50 64 941, vgg16 64 659",
    ("NVIDIA H200", "amp"): "resnet50 256 4728, vgg16 64 3243",
}  # fmt: skip
#: Its measured roofs in fp32 and bf16.
_H200_FLOPS, _H200_BYTES = {"fp32": 53.4e12, "amp": 706e12}, 4356e9
#: Two steps of it that wait for the host, and their images/s.
_HOST_BOUND = ("resnet18", "8", "fp32", 794.0), ("convnext_tiny", "64", "amp", 2296.0)


@dataclass(frozen=True)
class Timed:
    """Kernels on one device that took `time_s` together; `of` is a key of `_WEIGHTS`."""

    of: str
    device: str
    name: str
    time_s: float
    kernels: Any

    @property
    def chip(self) -> str:
        """The chip, whose boards are left out together."""
        found = re.search(r"\b(MI\d+|[A-Z]{1,2}\d+)", self.device)
        return found[1] if found else self.device

    @property
    def row(self) -> str:
        """The row of the table that it is counted in."""
        word = next((one for one in ("train", "inf", "MobileNet") if one in self.name), "")
        return f"{self.device} | {self.of} {word}"

    @property
    def model(self) -> str:
        """The model, of whatever size and batch."""
        return f"{self.of} {re.sub(' [0-9 ]+$', '', self.name)}"


def _rows(path: Path) -> list[dict[Any, str]]:
    return pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")


def _op_of(row: Mapping[str, str], name: str) -> CallWork:
    """The op that was timed, in fp32 with the names of torch."""
    shapes: list[tuple[int, ...]]
    if name == "conv":
        keys = ("B", "Input_Channel", "Output_Channel", "Kernel_Szie", "Input_Size")
        images, channels, filters, side, pixels = (int(row[key]) for key in keys)
        shapes = [(images, channels, pixels, pixels), (filters, channels, side, side)]
        elements = [*map(prod, shapes), images * filters * pixels**2]
        macs = elements[-1] * channels * side**2
    elif name in ("bmm", "linear"):
        # Its programs multiply (B, M, N) by (B, N, K), and a layer has N inputs and K outputs.
        batch, rows, columns, summed = (int(row[key]) for key in "BMKN")
        shapes = [(batch, rows, summed), (batch, summed, columns)]
        elements = [*map(prod, shapes), batch * rows * columns]
        macs = elements[-1] * summed
        shapes = [one[1:] for one in shapes] if name == "linear" else shapes
    else:
        shapes = [(int(row["B"]), int(row["H"]))]
        elements, macs = [prod(shapes[0])] * (3 if name == "mul" else 2), 0
    op = {"conv": "convolution", "linear": "mm", "ln": "layer_norm"}.get(name, name)
    return CallWork(op=op, label=op, phase="forward", shapes=tuple(shapes), flops=2 * macs, calls=1,
                    elementwise_flops=0, eager_bytes=4 * sum(elements), fused_bytes=0)  # fmt: skip


def read_op_times(folder: Path, most: int) -> Iterator[Timed]:
    """Yield timings long enough to show more than a launch, `most` of each op and device."""
    for name in ("bmm", "linear", "conv", "softmax", "ln", "mul", "gelu"):
        of_device = defaultdict(list)
        for row in _rows(folder / f"{name}.csv.gz"):
            if float(row["Latency"]) > 0.15:
                of_device[row["Device"]].append(row)
        for device, rows in of_device.items():
            of = "op" if name in ("bmm", "linear", "conv") else "pass"
            for row in random.Random(0).sample(rows, min(most, len(rows))):
                kernels = kernels_of([_op_of(row, name)])
                yield Timed(of, device, name, float(row["Latency"]) / 1e3, kernels)


@cache
def _step(spec: StepSpec, phases: str = "", masked: str = "") -> Any:
    """The kernels of a step, or what NeuSight timed of `phases`: without the loss.

    It adds gradients (3 of SGD's 5 passes); transformers 4.38 mask scores in the phase `masked`.
    """
    ops: list[CallWork] = []
    for op in cached_ops(spec).ops:
        is_loss = op.phase == "forward" and re.search("log_soft|nll", op.op)
        is_mask = (op.op, op.phase) == ("mul", masked) and len(op.shapes[0]) == 4
        if phases and op.phase == "optimizer":
            op = op.model_copy(update={"phase": "backward", "eager_bytes": op.eager_bytes * 3 // 5})
        if not phases or (op.phase in phases and not is_loss):
            ops += [op, op] if is_mask else [op]
    return kernels_of(ops)


def read_steps(folder: Path) -> Iterator[Timed]:
    """Yield the steps of transformers, attention op by op, and TensorFlow's of CNNs."""
    configs = Path(tempfile.mkdtemp())
    for row in _rows(folder / "whole_models_ms.csv"):
        name, mode, batch, length = (row[key] for key in ("model", "mode", "batch", "seqlen"))
        if row["option"] or name not in _TRANSFORMERS:
            continue
        config = {**_TRANSFORMERS[name], "_attn_implementation": "eager"}
        config |= dict.fromkeys(_DROPOUTS, 0.0) if mode == "inf" else {}
        path = configs / f"{name}-{mode}.json"
        path.write_text(json.dumps(config))
        of_bert = {"train": "masked-lm", "inf": "sequence-classification"}[mode]
        arch = f"hf:{path}:{of_bert if name.startswith('bert') else 'causal-lm'}"
        spec = StepSpec(arch, int(batch), "fp32", seq_len=int(length), backend="cuda")
        phases = "forward backward" if mode == "train" else "forward"
        kernels = _step(spec, phases, {"b": "forward", "g": "backward"}.get(name[0], ""))
        case, time_s = f"{name} {mode} {length} {batch}", float(row["e2e_latency"]) / 1e3
        yield Timed("transformer", row["device"], case, time_s, kernels)
    for row in _rows(folder / "cnn_training_s.csv"):
        name, pixels, batch = row["model"], int(row["image_size"]), row["batch_size"]
        if name in _CNNS and pixels >= _LEAST_PIXELS:
            spec = StepSpec(_CNNS[name], int(batch), "fp32", pixels, backend="cuda")
            case, time_s = f"{name} {pixels} {batch}", float(row["step_time_s_median"])
            yield Timed("cnn", row["device"], case, time_s, _step(spec))


def _of_run(arch: str, batch_size: str, precision: str) -> Any:
    """The kernels of a step of PyTorch's, with the model's own size of samples."""
    config = RunConfig(arch=arch, batch_size=int(batch_size), precision=precision)
    return _step(replace(StepSpec.of(config), backend="cuda"))


def read_runs(device: str, precision: str) -> Iterator[Timed]:
    """Yield steps of PyTorch."""
    for text in _RUNS[device, precision].split(", "):
        arch, batch, rate = text.split()
        kernels = _of_run(arch, batch, precision)
        yield Timed("torch", device, arch, int(batch) / float(rate), kernels)


class Fit:
    """A least squares fit of logarithms; devices differ by effects that are drawn to zero."""

    def __init__(self, timed: Sequence[Timed], table: Mapping[str, Peaks]) -> None:
        self.devices = sorted({one.device for one in timed})
        self.peaks = [table[normalised(name)] for name in self.devices]
        self.kernels = np.concatenate([one.kernels for one in timed])
        self.owner = np.repeat(np.arange(len(timed)), [len(one.kernels) for one in timed])
        self.device = np.array([self.devices.index(one.device) for one in timed])
        self.times_s = np.array([one.time_s for one in timed])
        self.of = np.array([one.of for one in timed])
        self.none = np.zeros((4, len(self.devices)))

    def sums(self, of_kernels: Any) -> Any:
        """Return the sum over all calls of each entry's kernels."""
        return np.bincount(self.owner, of_kernels * self.kernels["calls"], len(self.times_s))

    def each_s(self, known: Shares, effects: Any) -> Any:
        """Return the seconds of one call of each kernel."""
        compute, memory, heat, _ = np.exp(effects)
        reach = np.array([datasheet_reach(one, known) for one in self.peaks])
        flops = np.array([one.flops_per_s["fp32"] for one in self.peaks])
        rates = np.array([one.bytes_per_s for one in self.peaks]) * reach[:, 1] * memory
        units = np.array([one.processors for one in self.peaks])
        of, at = self.of[self.owner], self.device[self.owner]
        reached = (flops * reach[:, 0] * compute)[at] * np.where(of == "op", heat[at], 1)
        tile = np.array([batched_tile(one.compute_capability) for one in self.peaks])
        chip = Chip(reached, rates[at], flops[at], units[at], batched_tile=tile[at])
        each = kernel_times_s(self.kernels, chip, known)
        kind = np.where(of == "cnn", self.kernels["kind"], -1)
        each[kind == _BATCH_NORM] *= known["batch norm"] / known["tf batch norm"]
        # TensorFlow's own kernels are bound by their instructions, not by their bytes.
        instructions_s = self.kernels["flops"] / (flops * compute)[at] / known["tf depthwise"]
        return np.where(kind == _DEPTHWISE, instructions_s, each)

    def predicted_s(self, known: Shares, effects: Any) -> Any:
        """Return the time of each entry; effects are of compute, memory, heat and launches."""
        total, host = self.sums(self.each_s(known, effects)), self.sums(known["tf_call_s"])
        in_tf = (total**3 + host**3) ** (1 / 3) + known["tf_step_s"]
        launch = 3e-5 * np.exp(effects[3])[self.device] * np.isin(self.of, ("op", "pass"))
        return np.where(self.of == "cnn", in_tf, total + launch)

    def fit(self, start: Shares, tries: int) -> tuple[dict[str, float], Any]:
        """Return the shares and the devices' effects."""
        size, count = len(_NAMES), len(self.devices)
        centre = np.log([PRIOR[name][0] for name in _NAMES] + [1.0] * 4 * count)
        spread = np.concatenate([[PRIOR[name][1] for name in _NAMES], np.repeat(_EFFECTS, count)])
        scatter = np.array([_WEIGHTS[of][0] for of in self.of])
        shared = np.array([_WEIGHTS[of][1] / np.sqrt((self.of == of).sum()) for of in self.of])
        soft = np.maximum(scatter, 0.1)

        def known_of(values: Any) -> dict[str, float]:
            pairs = zip(_NAMES, np.exp(values[:size]).tolist(), strict=True)
            return dict(pairs) | {UNPROVEN: 0.5}

        def residuals(values: Any) -> Any:
            known, effects = known_of(values), values[size:].reshape(4, -1)
            error = np.log(self.predicted_s(known, effects) / self.times_s)
            robust = np.sign(error) * soft * np.sqrt(2 * (np.sqrt(1 + (error / soft) ** 2) - 1))
            reach = known["compute"] * known["many_lanes"] * 66.9e12, known["memory"] * 4800e9
            h200 = np.log(np.array(reach) / (_H200_FLOPS["fp32"], _H200_BYTES)) / _EFFECTS[:2]
            return np.concatenate([robust * shared / scatter, (values - centre) / spread, h200])

        first = np.concatenate([np.log([start[name] for name in _NAMES]), self.none.ravel()])
        settings: dict[str, Any] = {"x_scale": 0.1, "diff_step": 1e-3, "max_nfev": tries}
        found = optimize.least_squares(residuals, first, **settings).x
        return known_of(found), found[size:].reshape(4, -1)


@dataclass(frozen=True)
class HeldOut:
    """A step on a chip that was left out: errors as logarithms, parts of its time by class."""

    step: Timed
    error: float
    roof_error: float
    parts: Any


def held_out(steps: Sequence[Timed], known: Shares, table: Mapping[str, Peaks]) -> list[HeldOut]:
    """Return how far shares that were fitted without their chip miss `steps`."""
    fit = Fit(steps, table)
    each, kernels, kinds = fit.each_s(known, fit.none), fit.kernels, fit.kernels["kind"]
    flops, rates = (np.array([getattr(one, name) for one in fit.peaks])[fit.device[fit.owner]]
                    for name in ("fp32_tflop_per_s", "bytes_per_s"))  # fmt: skip
    roof_s = fit.sums(np.maximum(kernels["flops"] / (1e12 * flops), kernels["bytes"] / rates))
    errors = (np.log(one / fit.times_s) for one in (fit.predicted_s(known, fit.none), roof_s))
    classes = (kinds < 2, (kinds >= 2) & (kinds < len(PRODUCTS)), kinds == _DEPTHWISE,
               (kinds >= len(PRODUCTS)) & (kinds != _DEPTHWISE))  # fmt: skip
    parts = np.array([fit.sums(each * chosen) for chosen in classes]) / fit.sums(each)
    return list(map(HeldOut, steps, *errors, parts.T))


#: Where the deviations of an error start: of a chip, of each class of ops on it, of a model.
_DEVIATIONS = {"device": 0.07, "product": 0.05, "convolution": 0.15, "depthwise": 0.3,
               "pass": 0.1, "model": 0.05}  # fmt: skip


def learn_deviations(found: Sequence[HeldOut]) -> dict[str, float]:
    """Return the deviations of the parts of an error, by maximum likelihood.

    A chip's error is in all of its steps, that of a class of ops on it by their part of the time. A
    model's error is on all chips, and each step has as much of its own.
    """
    chips, models = (np.array([getattr(one.step, name) for one in found])
                     for name in ("chip", "model"))  # fmt: skip
    same_chip, same_model = (one[:, None] == one for one in (chips, models))
    parts = np.array([one.parts for one in found]).T
    classes = [np.outer(part, part) * same_chip for part in parts]
    terms = np.array([same_chip, *classes, same_model + np.eye(len(found))], dtype=float)
    errors, first = np.array([one.error for one in found]), np.log([*_DEVIATIONS.values()])

    def cost(logs: Any) -> float:
        factor = linalg.cho_factor(np.tensordot(np.exp(2 * logs), terms, 1))
        likely = np.log(np.diag(factor[0])).sum() + errors @ linalg.cho_solve(factor, errors) / 2
        return float(likely + ((logs - first) ** 2).sum() / 8)

    best = optimize.minimize(cost, first, method="Nelder-Mead", options={"maxfev": 3000}).x
    return dict(zip(_DEVIATIONS, np.exp(best).tolist(), strict=True))


def widening(pairs: Sequence[tuple[HeldOut, HeldOut]]) -> float:
    """Return how much further shares of older chips alone miss, in the mean of kinds of steps."""
    of_row = defaultdict(list)
    for one, late in pairs:
        if late.error != one.error:
            of_row[one.step.row].append((late.error, one.error))
    ratios = [np.sqrt(np.divide(*np.square(errors).mean(0))) for errors in of_row.values()]
    return max(float(np.mean(ratios)), 1.0)


def deviation_of(one: HeldOut, known: Mapping[str, float]) -> float:
    """Return the deviation of a step of another model on another chip."""
    device, *classes, model = (known[name] ** 2 for name in _DEVIATIONS)
    return float(np.sqrt(device + one.parts**2 @ np.array(classes) + 2 * model))


def products_and_all_s(run: Timed, chip: Chip, known: Shares) -> tuple[float, float]:
    """Return the seconds of the products of a step, and of all its kernels."""
    times = kernel_times_s(run.kernels, chip, known) * run.kernels["calls"]
    return times[run.kernels["kind"] < len(PRODUCTS)].sum(), times.sum()


def from_runs(known: dict[str, float], table: Mapping[str, Peaks]) -> dict[str, float]:
    """Add to `known` what rests on single runs; return the deviations of it.

    Tensor cores, convolutions in fp32 on newer devices, and the time of a call on the host.
    """
    # An H200's products in bf16 are as fast as 700 W allow in 4 nm.
    known["w_per_tensor_tflop_nm"] = known["compute"] * 700 / (4 * _H200_FLOPS["amp"] / 1e12)
    calls, took_s = [], []
    for *case, rate in _HOST_BOUND:
        kernels = _of_run(*case)
        calls.append(kernels["calls"][np.unique(kernels["op"], return_index=True)[1]].sum())
        took_s.append(int(case[1]) / rate)
    call_s, fixed_s = np.polyfit(calls, took_s, 1).tolist()
    known |= {"host_call_s": call_s, "host_step_s": fixed_s}
    steps: list[tuple[Chip, Timed]] = []
    newer = []
    for device, precision in [key for key in _RUNS if key[0] != "Tesla T4"]:
        one = table[normalised(device)]
        mode: Any = "bf16" if precision == "amp" else precision
        peak, rate = one.flops_per_s[mode], one.bytes_per_s
        reach = datasheet_reach(one, known, mode)
        if device == "NVIDIA H200":
            peak, rate, reach = _H200_FLOPS[precision], _H200_BYTES, (1.0, 1.0)
        chip = Chip(peak * reach[0], rate * reach[1], peak, one.processors, mode)
        for run in read_runs(device, precision):
            if mode == "fp32":
                product_s, step_s = products_and_all_s(run, chip, known)
                newer.append(np.log(product_s / (run.time_s - step_s + product_s)))
            else:
                steps.append((chip, run))
    names = [run.device for _, run in steps]
    weights = np.array([1 / names.count(name) for name in names])  # devices count alike

    def errors(log: float) -> tuple[Any, Any]:
        shares = known | dict.fromkeys(PRODUCTS, float(np.exp(log)))
        found = [products_and_all_s(run, chip, shares) for chip, run in steps]
        product_s, step_s = np.array(found).T
        return np.log(step_s / [run.time_s for _, run in steps]), product_s / step_s

    best = optimize.minimize_scalar(
        lambda log: (weights * errors(log)[0] ** 2).sum(), bounds=(-2, 1), method="bounded"
    ).x
    error, part = errors(best)
    for name, (_, run), missed in zip(names, steps, np.expm1(error), strict=True):
        print(f"tensor cores: {name} {run.name} {100 * missed:+.0f} %")
    known |= {"tensor": float(np.exp(best)), "newer_convolution": float(np.exp(np.mean(newer)))}
    tensor = np.sqrt((weights * error**2).sum() / (weights * part**2).sum())
    # A mean of two, and a third device: half more. The last two no data shows: chosen wide.
    return {"tensor": float(tensor), "newer_convolution": float(1.5 * np.std(newer, ddof=1)),
            "host": 0.4, UNPROVEN: 0.7}  # fmt: skip


def print_table(found: Sequence[HeldOut], scores: Mapping[int, float], limit: float) -> None:
    """Print a row for each device and kind of step."""
    print("| device left out | steps | mean error | bias | bare roofline | in 90 % |")
    for row in sorted({one.step.row for one in found}):
        chosen = [one for one in found if one.step.row == row]
        errors = np.array([(one.error, one.roof_error) for one in chosen])
        error, roof_error = np.abs(np.expm1(errors)).mean(0)
        inside = np.mean([scores[id(one)] <= limit for one in chosen])
        figures = (error, np.expm1(errors[:, 0].mean()), roof_error, inside)
        print(f"| {row} | {len(chosen)} |", *(f"{100 * one:.1f} % |" for one in figures))


def main() -> None:
    """Read, fit, leave each chip out, print the table and the numbers, as JSON."""
    folder = Path(sys.argv[1])
    table = {name: row for row in (*datasheet_peaks(), *_UNLISTED) if row.processors
             for name in row.names}  # fmt: skip
    steps = [*read_steps(folder), *read_runs("Tesla T4", "fp32")]
    ops = [*read_op_times(folder, 250)]
    fitted = [one for one in (*ops, *steps) if one.chip not in _UNLIKE]

    def generation(one: Timed) -> int:
        return int(table[normalised(one.device)].compute_capability or 0)

    known, _ = Fit(fitted, table).fit({name: PRIOR[name][0] for name in _NAMES}, 25)
    found: list[HeldOut] = []
    by_older: list[tuple[HeldOut, HeldOut]] = []  # by all other chips, and by older ones alone
    for chip in sorted({one.chip for one in steps}):
        others = [one for one in fitted if one.chip != chip]
        without = Fit(others, table).fit(known, 12)[0] if chip not in _UNLIKE else known
        left_out = [one for one in steps if one.chip == chip]
        found += (by_all := held_out(left_out, without, table))
        older = [one for one in others if generation(one) < generation(left_out[0])]
        if chip not in _UNLIKE and any(one.of == "op" for one in older):
            late = Fit(older, table).fit(known, 12)[0] if len(older) < len(others) else without
            by_older += zip(by_all, held_out(left_out, late, table), strict=True)
    proven = [one for one in found if one.step.chip not in _UNLIKE]
    scores: dict[int, float] = {}
    for chip in {one.step.chip for one in found}:  # by what the other chips say of it
        learned = learn_deviations([one for one in proven if one.step.chip != chip])
        scores |= {id(one): abs(one.error) / deviation_of(one, learned)
                   for one in found if one.step.chip == chip}  # fmt: skip
    of_proven = [scores[id(one)] for one in proven]
    quantiles = {f"{n}": float(np.quantile(of_proven, n / 100)) for n in (50, 90)}
    print_table(found, scores, quantiles["90"])
    scores |= {id(late): scores[id(one)] * abs(late.error / one.error) for one, late in by_older}
    deviations = learn_deviations(proven)
    deviations["newer"] = widening(by_older)
    print_table([late for _, late in by_older], scores, quantiles["90"] * deviations["newer"])
    whole = np.mean([deviation_of(one, deviations) ** 2 for one in proven])
    of_amd = [one.error for one in found if one.step.chip == "MI100"]
    deviations["amd"] = float(np.sqrt(np.mean(np.square(of_amd))))
    deviations |= from_runs(known, table)
    kept = {name: value for name, value in known.items() if not name.startswith("tf")}
    numbers = {"source": _SOURCE, "shares": kept, "errors": deviations, "quantiles": quantiles,
               "carried": deviations["model"] ** 2 / whole}  # fmt: skip
    rounded = json.loads(json.dumps(numbers), parse_float=lambda text: float(f"{float(text):.4g}"))
    print(json.dumps(rounded, indent=1))


if __name__ == "__main__":
    main()

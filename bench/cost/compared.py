"""One step as other projects and other counters count it, and why they differ from `Complexity`."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import metadata
from math import ceil
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from bench.config import split_arch
from bench.cost.fake_step import fake_workload, record_step
from bench.cost.flops import attention_macs, grouped_macs
from bench.errors import UserError, one_line
from bench.records import Complexity, StepSpec
from bench.records.base import ratio
from bench.records.complexity import is_attention
from bench.training.workloads import find_workload

Row = dict[str, Any]


# Formulas of projects


#: Where each project's formula is, in which version, and why its result differs from ours.
FORMULAS = {
    "palm": (
        "arXiv 2204.02311, appendix B",
        "embeddings, norms and biases count as multiplied, other experts too; masks hide nothing",
    ),
    "megatron": (
        "Megatron-LM d98e8a64 (2026-08-22), num_floating_point_operations",
        "half of attention, windows too; no router; words in multiples of 128",
    ),
    "torchtitan": (
        "torchtitan b5bcd76c (2026-08-21), models/utils.py, with windows as in its #4300",
        "norms and biases count as multiplied; windows hide keys, a causal mask none",
    ),
    "nanogpt": (
        "nanoGPT 3adf61e (2025-11-12), model.py, estimate_mfu",
        "norms, biases and untied embeddings count as multiplied; masks hide nothing",
    ),
    "hf": (
        "transformers 5.23.0, Trainer.floating_point_ops",
        "no attention; norms and other experts count as multiplied; of tied words no logits",
    ),
}


def as_others(spec: StepSpec, complexity: Complexity, names: Iterable[str]) -> list[Row]:
    """Return what each of these `FORMULAS` makes of the step of `spec`, which has this complexity.

    Rows have FLOP per sample, as shares of ours too; where a formula is not for the model, `why`
    says so.
    """
    with FakeTensorMode(allow_fallback_kernels=False) as fake:
        _, model = fake_workload(spec, fake)
    tokens = complexity.tokens_per_sample
    per_token = _flops_per_token(model, tokens or 0)
    frozen = any(not parameter.requires_grad for parameter in model.parameters())
    rows: list[Row] = []
    for name in names:
        source, why = FORMULAS[name]
        rows.append({"as": name, "source": source, "why": per_token})
        if tokens and not isinstance(per_token, str):
            flops = round(per_token[name] * tokens)
            rows[-1] |= {
                f"step_flops_per_{complexity.sample}": flops,
                "of_counted": ratio(flops * complexity.batch_size, complexity.step_flops),
                "of_required": ratio(flops * complexity.batch_size, complexity.required_flops),
                "why": why + ("; frozen weights count as trained" if frozen else ""),
            }
    return rows


def _flops_per_token(model: torch.nn.Module, tokens: int) -> dict[str, float] | str:
    """FLOP of a token among so many by each of `FORMULAS`, or why they are not for the model."""
    config: Any = getattr(model, "config", None)
    if not tokens or not hasattr(config, "num_attention_heads"):
        return "it is of language models, by their configuration in transformers"
    if getattr(config, "kv_lora_rank", None):
        return "latent attention has widths that the formula does not name"

    def of(*names: str) -> Any:
        return next((value for name in names if (value := getattr(config, name, None))), 0)

    layers, hidden, heads = config.num_hidden_layers, config.hidden_size, config.num_attention_heads
    width = of("head_dim") or hidden // heads
    queries, keys = heads * width, (of("num_key_value_heads") or heads) * width
    inner, top = of("intermediate_size", "n_inner") or 4 * hidden, of("num_experts_per_tok")
    inner_of_expert = of("moe_intermediate_size") or inner
    experts = of("num_local_experts", "num_experts", "n_routed_experts")
    window, kinds = of("sliding_window") or tokens, of("layer_types") or ["sliding"] * layers
    windows = [min(window, tokens) if "sliding" in kind else tokens for kind in kinds]

    size = torch.Tensor.numel
    tables = {id(m.weight): m.weight for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    parameters, embeddings = sum(map(size, model.parameters())), sum(map(size, tables.values()))
    of_positions = of("max_position_embeddings")
    positions = sum(size(table) for table in tables.values() if len(table) == of_positions)
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    is_tied = id(getattr(head, "weight", None)) in tables
    own = [[*module.parameters(recurse=False)] for module in model.modules()]
    stacks = [each for each in own if top and any(p.dim() == 3 for p in each)]
    idle = sum(p.numel() for each in stacks for p in each) * (1 - top / (experts or 1))
    has_gate = any(n.endswith(("gate_proj", "gate_up_proj")) for n, _ in model.named_modules())
    of_experts = top * inner_of_expert + of("n_shared_experts") * inner_of_expert
    through = (layers - len(stacks)) * inner + len(stacks) * of_experts
    pairs = 12 * layers * queries * tokens
    linear = 2 * layers * (queries + keys) + (3 if has_gate or stacks else 2) * through
    return {
        "palm": 6 * parameters + pairs,
        "megatron": 6 * hidden * (linear + 128 * ceil(config.vocab_size / 128)) + pairs / 2,
        "torchtitan": 6 * (parameters - (0 if is_tied else embeddings) - idle)
        + sum(12 * queries * keys_seen for keys_seen in windows),
        "nanogpt": 6 * (parameters - positions) + pairs,
        "hf": 6 * (parameters - embeddings),
    }


# Other counters


def against(counter: str, spec: StepSpec) -> list[Row]:
    """Return each difference between a counter, `fvcore` or `torch`, and our count of `spec`.

    A row has `theirs` and `ours` of a class of ops, their `difference`, the `unit` and the
    `reason`. Reasons are amounts that are computed, so what they leave is a row of its own. fvcore
    counts the forward pass of two samples; torch counts the step. Raises `UserError` where the
    counter cannot.
    """
    rows = (_against_fvcore if counter == "fvcore" else _against_torch)(spec)
    version = metadata.version(counter)
    return [{"counter": f"{counter} {version}"} | row for row in rows]


def _rows(
    theirs: Counter[str], ours: Counter[str], unit: str, known: Mapping[tuple[str, str], int]
) -> Iterator[Row]:
    """Yield the known differences, by ops and reason, and what they leave of each op."""
    left = Counter(theirs)
    left.subtract(ours)
    for (ops, _), difference in known.items():
        left[ops] -= difference
    not_known = {(ops, "not explained"): difference for ops, difference in left.items()}
    for (ops, reason), difference in {**known, **not_known}.items():
        if difference:
            both = {"theirs": theirs[ops], "ours": ours[ops], "difference": difference}
            yield {"ops": ops, **both, "unit": unit, "reason": reason}


def _against_torch(spec: StepSpec) -> Iterator[Row]:
    counter = FlopCounterMode(display=False)
    step = record_step(spec, beside=counter)
    total = counter.flop_counts["Global"]
    theirs = Counter({_plain(op): flops for op, flops in total.items()})
    has_formula, ours, known = {*map(_plain, flop_registry)}, Counter[str](), Counter[Any]()
    for call in step.calls:
        op, macs = call.op, [item.macs for item in call.passes if item.macs]
        ours[op] += 2 * sum(macs)
        again = 2 * sum(item.recomputed_macs for item in call.passes)
        known[op, "it counts what checkpoints compute again"] += again
        if op not in has_formula:
            known[op, "it has no formula for this op"] -= 2 * sum(macs)
        elif op == "convolution_backward" and macs:
            gradient, inputs, weight = (shape[1] for shape in call.shapes[:3])
            of_groups = inputs if gradient == call.shapes[2][0] else gradient
            more = 2 * macs[-1] * (of_groups // weight - 1)
            known[op, "it ignores the groups in the gradient of the weight"] += more
        elif is_attention(op) and op.endswith("_backward"):
            query, key = call.shapes[1:3]
            scores = 2 * attention_macs(query, key, (*key[:-1], 0))
            known[op, "it counts the scores, which the kernel computes again"] += scores
    return _rows(theirs, ours, "FLOP", known)


def _plain(op: Any) -> str:
    """The name of an op of torch without that of its library."""
    return str(op).rpartition(".")[2]


class _Traced(torch.nn.Module):
    """What a workload makes of a batch of two, as a module that takes the tensors of the batch."""

    def __init__(self, spec: StepSpec) -> None:
        super().__init__()
        sizes = {"image_size": spec.image_size, "seq_len": spec.seq_len}
        self._workload = find_workload(spec.arch, **sizes)
        with torch.device("meta" if split_arch(spec.arch)[0] == "hf" else "cpu"):
            self.model = self._workload.build()
        if any(isinstance(m, torch.nn.modules.conv._ConvNd) for m in self.modules()):
            self.model = self._workload.build()  # torch.jit traces no convolution on "meta"
        where = next((parameter.device for parameter in self.parameters()), "cpu")
        batch = tree_map_only(torch.Tensor, lambda t: t.to(where), self._workload.batch(2))
        self.tensors, self._form = tree_flatten(batch)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return the output of the model."""
        return self._workload.output(self.model, tree_unflatten(tensors, self._form))


_PRODUCTS = "matrix products and attention"
#: What fvcore has no formula for, by ours from the shapes of the op's first arguments.
_MISSING: dict[str, tuple[int, Callable[..., int]]] = {
    "scaled_dot_product_attention": (3, attention_macs),
    "_grouped_mm": (2, grouped_macs),
}


def _against_fvcore(spec: StepSpec) -> Iterator[Row]:
    try:
        from fvcore.nn import FlopCountAnalysis
    except ImportError:
        raise UserError("against='fvcore': pip install 'mlproject[fvcore]'") from None

    def handle(count: int, formula: Callable[..., int]) -> Callable[..., int]:
        return lambda given, _: formula(*(value.type().sizes() for value in given[:count]))

    traced = _Traced(spec)
    analysis = FlopCountAnalysis(traced, tuple(traced.tensors))
    analysis.set_op_handle(**{f"aten::{op}": handle(*how) for op, how in _MISSING.items()})
    analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tracing
            found = {op: int(macs) for op, macs in analysis.by_operator().items()}
    except Exception as error:
        why = one_line(error)
        raise UserError(f"against='fvcore': it cannot trace this model ({why})") from error
    theirs, ours, known = Counter[str](), Counter[str](), Counter[Any]()
    for op, macs in found.items():
        if op in _MISSING:
            known[_PRODUCTS, f"it has no formula for {op}"] -= macs
        elif op in ("conv", "addmm", "bmm", "einsum", "linear", "matmul", "mm"):
            theirs["convolution" if op == "conv" else _PRODUCTS] += macs
        else:
            theirs[op] = macs
            known[op, "no product of matrices: we count it apart, as small FLOP"] += macs
    for call in record_step(replace(spec, batch_size=2)).calls:
        if call.phase == "forward":
            kind = "convolution" if call.op == "convolution" else _PRODUCTS
            ours[kind] += sum(item.macs for item in call.passes)
    missing = sum(found.get(op, 0) for op in _MISSING)
    rest = theirs[_PRODUCTS] + missing - ours[_PRODUCTS]
    if abs(rest) <= 5e-4 * found.get("einsum", 0):
        known[_PRODUCTS, "it reads einsum's as NumPy prints them, with four digits"] += rest
    return _rows(theirs, ours, "MAC", known)

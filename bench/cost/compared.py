"""One step as other projects and other counters count it, and why they differ from `Complexity`."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
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


@dataclass(frozen=True)
class Transformer:
    """A language model in the terms of the formulas: counts of weights, widths, and keys per query.

    `positions` and `experts` are parts of `parameters`, as are `embeddings`, which have the former.
    """

    parameters: int
    embeddings: int
    positions: int
    experts: int
    active_experts: float  # the share of them that a token is sent to
    is_tied: bool
    layers: int
    hidden: int
    queries: int  # heads x width of a head, as the keys'
    keys: int
    feed_forward: float  # widths of the hidden layers that a token goes through, of all layers
    matrices: int  # of a hidden layer: 3 with a gate
    words: int
    tokens: int
    windows: tuple[int, ...]  # keys that a query of each layer may see

    @property
    def pairs(self) -> int:
        """FLOP of a token's attention, its two products with all keys, forward and backward."""
        return 12 * self.layers * self.queries * self.tokens


@dataclass(frozen=True)
class Formula:
    """FLOP of a training step per token, the `source` of the formula, and why it is another."""

    flops: Callable[[Transformer], float]
    source: str
    why: str


FORMULAS = {
    "palm": Formula(
        lambda m: 6 * m.parameters + m.pairs,
        "arXiv 2204.02311, appendix B",
        "embeddings, norms and biases count as multiplied, other experts too; masks hide nothing",
    ),
    "megatron": Formula(
        lambda m: 6 * m.layers * m.hidden * 2 * (m.queries + m.keys) + m.pairs / 2
        + 6 * m.hidden * (m.matrices * m.feed_forward + 128 * ceil(m.words / 128)),
        "Megatron-LM d98e8a64 (2026-08-22), num_floating_point_operations",
        "half of attention, windows too; no router; words in multiples of 128",
    ),
    "torchtitan": Formula(
        lambda m: 6 * (m.parameters - (0 if m.is_tied else m.embeddings)
                       - m.experts * (1 - m.active_experts))
        + sum(12 * m.queries * window for window in m.windows),
        "torchtitan b5bcd76c (2026-08-21), models/utils.py, with windows as in its #4300",
        "norms and biases count as multiplied; windows hide keys, a causal mask none",
    ),
    "nanogpt": Formula(
        lambda m: 6 * (m.parameters - m.positions) + m.pairs,
        "nanoGPT 3adf61e (2025-11-12), model.py, estimate_mfu",
        "norms, biases and untied embeddings count as multiplied; masks hide nothing",
    ),
    "hf": Formula(
        lambda m: 6 * (m.parameters - m.embeddings),
        "transformers 5.23.0, Trainer.floating_point_ops",
        "no attention; norms and other experts count as multiplied; of tied words no logits",
    ),
}  # fmt: skip


def as_others(spec: StepSpec, complexity: Complexity, names: Iterable[str]) -> list[Row]:
    """Return what each of these `FORMULAS` makes of the step of `spec`, which has this complexity.

    Rows have FLOP per sample, as shares of ours too; where a formula is not for the model, `why`
    says so.
    """
    with FakeTensorMode(allow_fallback_kernels=False) as fake:
        _, model = fake_workload(spec, fake)
    known = _transformer(model, complexity.tokens_per_sample)
    frozen = any(not parameter.requires_grad for parameter in model.parameters())
    also = "; frozen weights count as trained" if frozen else ""
    rows: list[Row] = []
    for name in names:
        formula = FORMULAS[name]
        rows.append({"as": name, "why": known, "source": formula.source})
        if isinstance(known, Transformer):
            flops = round(formula.flops(known) * known.tokens)
            rows[-1] |= {
                f"step_flops_per_{complexity.sample}": flops,
                "of_counted": ratio(flops * complexity.batch_size, complexity.step_flops),
                "of_required": ratio(flops * complexity.batch_size, complexity.required_flops),
                "why": formula.why + also,
            }
    return rows


def _transformer(model: torch.nn.Module, tokens: int | None) -> Transformer | str:
    """The model in the formulas' terms, by its configuration; or why it has none."""
    config: Any = getattr(model, "config", None)
    if tokens is None or not hasattr(config, "num_attention_heads"):
        return "it is of language models, by their configuration in transformers"
    if getattr(config, "kv_lora_rank", None):
        return "latent attention has widths that the formula does not name"
    modules, layers, hidden = [*model.modules()], config.num_hidden_layers, config.hidden_size
    embeddings = [m.weight for m in modules if isinstance(m, torch.nn.Embedding)]
    words = next((w for w in embeddings if len(w) == config.vocab_size), None)
    stacks = [m for m in modules if any(p.dim() == 3 for p in m.parameters(recurse=False))]
    width = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    groups = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    inner = getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None)
    top = getattr(config, "num_experts_per_tok", None) or 0
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    all_experts = next((n for name in names if (n := getattr(config, name, None))), 1)
    of_expert = getattr(config, "moe_intermediate_size", None) or inner
    shared = (getattr(config, "n_shared_experts", None) or 0) * (of_expert or 0)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    window = getattr(config, "sliding_window", None) or tokens
    head: Any = getattr(model, "get_output_embeddings", lambda: None)()
    return Transformer(
        parameters=sum(p.numel() for p in model.parameters()),
        embeddings=sum(w.numel() for w in {id(w): w for w in embeddings}.values()),
        positions=sum(w.numel() for w in embeddings if len(w) == config.max_position_embeddings),
        experts=sum(p.numel() for m in stacks for p in m.parameters(recurse=False)),
        active_experts=top / all_experts,
        is_tied=head is not None and words is not None and head.weight is words,
        layers=layers,
        hidden=hidden,
        queries=config.num_attention_heads * width,
        keys=groups * width,
        feed_forward=(layers - len(stacks)) * (inner or 4 * hidden)
        + len(stacks) * (top * (of_expert or 0) + shared),
        matrices=3 if any("gate" in n and n.endswith("proj") for n, _ in model.named_modules())
        or stacks else 2,
        words=config.vocab_size,
        tokens=tokens,
        windows=tuple(min(window, tokens) if "sliding" in k else tokens for k in kinds),
    )  # fmt: skip


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
        batch = self._workload.batch(2)
        with torch.device("meta" if split_arch(spec.arch)[0] == "hf" else "cpu"):
            self.model = self._workload.build()
        if any(isinstance(m, torch.nn.modules.conv._ConvNd) for m in self.modules()):
            self.model = self._workload.build()  # torch.jit traces no convolution on "meta"
        where = next((parameter.device for parameter in self.parameters()), "cpu")
        batch = tree_map_only(torch.Tensor, lambda tensor: tensor.to(where), batch)
        self.tensors, self._form = tree_flatten(batch)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Return the output of the model."""
        return self._workload.output(self.model, tree_unflatten(tensors, self._form))

    def counts(self, **handles: Callable[..., int]) -> Counter[str]:
        """Return MAC by operator as fvcore counts them, with these formulas of ours."""
        try:
            from fvcore.nn import FlopCountAnalysis
        except ImportError:
            raise UserError("against='fvcore': pip install 'mlproject[fvcore]'") from None
        analysis = FlopCountAnalysis(self, tuple(self.tensors)).set_op_handle(**handles)
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of tracing
                found = analysis.by_operator()
        except Exception as error:
            why = one_line(error)
            raise UserError(f"against='fvcore': it cannot trace this model ({why})") from error
        return Counter({op: int(number) for op, number in found.items()})


_PRODUCTS = "matrix products and attention"
#: What fvcore has no formula for, by ours from the shapes of the op's arguments.
_MISSING: dict[str, Callable[..., int]] = {
    "scaled_dot_product_attention": attention_macs,
    "_grouped_mm": grouped_macs,
}


def _against_fvcore(spec: StepSpec) -> Iterator[Row]:
    def handle(formula: Callable[..., int], arguments: int) -> Callable[..., int]:
        return lambda given, _: formula(*(value.type().sizes() for value in given[:arguments]))

    traced = _Traced(spec)
    handles = {f"aten::{op}": handle(formula, formula.__code__.co_argcount)
               for op, formula in _MISSING.items()}  # fmt: skip
    found, with_ours = traced.counts(), traced.counts(**handles)
    theirs, ours, known = Counter[str](), Counter[str](), Counter[Any]()
    for op, macs in found.items():
        if op in ("conv", "addmm", "bmm", "einsum", "linear", "matmul", "mm"):
            theirs["convolution" if op == "conv" else _PRODUCTS] += macs
        else:
            theirs[op] = macs
            known[op, "no product of matrices: we count it apart, as small FLOP"] += macs
    for op in _MISSING:
        known[_PRODUCTS, f"it has no formula for {op}"] -= with_ours[op]
    for call in record_step(replace(spec, batch_size=2)).calls:
        if call.phase == "forward":
            kind = "convolution" if call.op == "convolution" else _PRODUCTS
            ours[kind] += sum(item.macs for item in call.passes)
    rest = theirs[_PRODUCTS] + sum(with_ours[op] for op in _MISSING) - ours[_PRODUCTS]
    if abs(rest) <= 5e-4 * found["einsum"]:
        known[_PRODUCTS, "it reads einsum's as NumPy prints them, with four digits"] += rest
    return _rows(theirs, ours, "MAC", known)

"""`mlproject complexity`: FLOP, bytes and memory of a model's training step, nothing measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from bench.config import RunConfig, common_sample, parse_config
from bench.errors import UserError
from bench.records.complexity import NO_WORK, WORK, StepSpec, Work
from commands.console.options import field_option, option, words_of
from commands.console.output import Answering, Output, Shown, table_of, watched

if TYPE_CHECKING:
    from analysis.presentation.table import Table
    from bench.records import Complexity as Counted

#: Units of the tables' numbers, by the last word of a heading.
_UNITS = {"GMAC": 1e9, "GFLOP": 1e9, "MB": 1e6, "%": 0.01, "FLOP/B": 1.0, "parameters": None}
#: Names of `bench.cost.compared`, which imports torch.
PROJECTS, COUNTERS = ("palm", "megatron", "torchtitan", "nanogpt", "hf"), ("fvcore", "torch")
#: Headings of `--as`, and their keys.
_AS = {"project": "as", "GFLOP": "", "of counted %": "of_counted", "of required %": "of_required",
       "why": "why", "source": "source"}  # fmt: skip
_INPUTS = ("arch", "batch_size", "image_size", "tokens_per_sample", "precision")
_OF_MODULES = (
    "A module's row has all within it; (model), (loss) and (optimizer) add up to the step."
)


class Complexity(Shown, Answering):
    """Print FLOP, bytes and memory of a model's training step.

    Its phases are forward, backward and optimizer. Nothing is run or allocated, so any batch size
    will do. A multiply-add is 2 FLOP. Bytes are a range: fused (every chain of small ops folded
    into its neighbours) to eager (every op by itself).
    """

    arch: tuple[str, ...] = option(
        "torchvision name, timm:NAME, hf:NAME or module:callable (may be given again)",
        ("resnet18",),
        metavar="NAME",
    )
    batch_size: tuple[str, ...] = option(
        "images or sequences per step (may be given again: every model with every size)",
        ("32",),
        metavar="N",
    )
    precision: str = option(
        "fp32, tf32, amp, amp-bf16, amp-fp16 or fp8; amp counts as bf16, on a device that has "
        "neither bf16 nor fp16 it is fp32",
        "fp32",
    )
    image_size: str = field_option("image_size")
    seq_len: str = field_option("seq_len")
    optimizer: str = field_option("optimizer")
    backend: Literal["cpu", "cuda"] = option(
        "device whose ops and casts are counted; it need not be here", "cpu"
    )
    ops: bool = option("also the cost of every op in every phase")
    by: Literal["module"] | None = option("also the cost of every module")
    projects: tuple[str, ...] = option(
        f"also FLOP as these projects count a language model: {','.join(PROJECTS)}",
        (),
        "--as",
        metavar="NAMES",
        callback=words_of(*PROJECTS),
    )
    counters: tuple[str, ...] = option(
        f"also where these counters differ, and why: {','.join(COUNTERS)}",
        (),
        "--against",
        metavar="NAMES",
        callback=words_of(*COUNTERS),
    )
    depth: Annotated[int, click.IntRange(min=0)] = option(
        "with --by module: how far into the model; layer1.0 has depth 2", 2
    )

    def _result(self) -> Output:
        details = (self.ops, self.by, self.projects, self.counters)
        if self.form == "csv" and sum(map(bool, details)) > 1:
            raise UserError(
                "--format csv has rows of one kind: leave out --ops or --by, --as or --against"
            )
        configs = [self._config(arch, size) for arch in self.arch for size in self.batch_size]
        counted = list(watched(map(self._counted, configs), "complexity", len(configs)))
        facts = [item.row() for item, *_ in counted]
        parts: list[Table | str] = [*_step_tables([item for item, *_ in counted])]
        for config, row, (item, modules, ties) in zip(configs, facts, counted, strict=True):
            step, each = f"{item.arch}, one step of {item.batch_size}", f"per {item.sample}"
            if self.by is not None:
                row |= {"modules": modules, "tied_parameters": ties}
                shown = [_module(module, item.sample) for module in modules]
                parts.append(_table(f"Modules of {step}, {each}", shown))
                for name, first_name in ties.items():
                    parts.append(f"{name} is {first_name}: its parameters are counted once, there.")
            if self.ops:
                names = "op", "phase", "calls"
                row["ops"] = [{n: getattr(op, n) for n in (*names, *WORK)} for op in item.ops]
                shown = [{n: getattr(op, n) for n in names} | _work(op) for op in item.ops]
                parts.append(_table(f"Ops of {step} {item.sample}s in {item.precision}", shown))
            if self.projects or self.counters:
                from bench.cost.compared import against, as_others

                spec = StepSpec.of(config)
            if self.projects:
                row["as"] = as_others(spec, item, self.projects)
                keys = _AS | {"GFLOP": f"step_flops_{each.replace(' ', '_')}"}
                shown = [{n: other.get(key) for n, key in keys.items()} for other in row["as"]]
                parts.append(_table(f"{step}, as others count it, {each}", shown))
            if self.counters:
                row["against"] = [row for name in self.counters for row in against(name, spec)]
                kinds = ("counter", "ops", "theirs", "ours", "unit", "reason")
                shown = [{n: other[n] for n in kinds} for other in row["against"]]
                title = f"Where other counters differ on {item.arch}"
                parts.append(_table(title, shown) if shown else f"{title}: nowhere.")
        parts += [_OF_MODULES] if self.by else []
        parts += _notes([item for item, *_ in counted])
        if part := next((n for n in ("ops", "modules", "as", "against") if n in facts[0]), None):
            data = [{n: row[n] for n in _INPUTS} | each for row in facts for each in row[part]]
        return Output(parts, facts, [table_of("complexity", data if part else facts)])

    def _config(self, arch: str, batch_size: str) -> RunConfig:
        """Refuse wrong values before torch is imported, which takes seconds."""
        if not batch_size.isdecimal() or int(batch_size) < 1:
            raise UserError(f"batch_size={batch_size!r}: give a whole number, 1 or more")
        names = ("precision", "image_size", "seq_len", "optimizer", "backend")
        settings = {name: getattr(self, name) for name in names}
        return parse_config({"arch": arch, "batch_size": batch_size, **settings})

    def _counted(self, config: RunConfig) -> tuple[Counted, list[dict[str, Any]], dict[str, str]]:
        from bench.cost import cached_complexity
        from bench.cost.estimate import complexity_by_module

        if self.by is None:
            return cached_complexity(StepSpec.of(config)), [], {}
        return complexity_by_module(config, depth=self.depth)


def _step_tables(found: Sequence[Counted]) -> Iterator[Table]:
    """The steps, their phases and what they hold in memory, a table of each."""
    steps, phases, held = [], [], []
    for item in found:
        name, samples = {"model": item.arch, "batch": item.batch_size}, item.batch_size
        tokens = None if item.image_size else item.tokens_per_sample
        work = {
            "pixels": item.image_size,
            "tokens": tokens,
            "forward GMAC": item.forward_macs / samples,
            "required GFLOP": item.required_flops and item.required_flops / samples,
            **_work(sum(item.phases.values(), NO_WORK), samples),
            "least MB": item.compulsory_bytes / samples,
            "eager FLOP/B": item.intensity_min,
            "fused FLOP/B": item.intensity_max,
        }
        steps.append(name | work)
        phases += [name | {"phase": p, **_work(w, samples)} for p, w in item.phases.items()]
        memory = {f"{part.removesuffix('_bytes')} MB": size for part, size in item.memory}
        total = {"together MB": item.memory.total_bytes}
        held.append(name | {"parameters": item.parameters, **memory, **total})
    each = f"per {common_sample(item.sample for item in found)}"
    yield _table(f"One training step in {found[0].precision}, {each}", steps)
    yield _table(f"Its phases, {each}", phases)
    yield _table("Memory that it holds", held)


def _work(work: Work, samples: int = 1) -> dict[str, float]:
    return {
        "GFLOP": work.flops / samples,
        "small GFLOP": work.elementwise_flops / samples,
        "fused MB": work.fused_bytes / samples,
        "eager MB": work.eager_bytes / samples,
    }


def _module(row: Mapping[str, Any], sample: str) -> dict[str, Any]:
    """A module's row for people, as far to the right as it is deep in the model."""
    depth, last = row["depth"], row["module"].rpartition(".")[2]
    return {
        "module": "  " * depth + last if depth else row["module"],
        "parameters": row["parameters"],
        "forward GMAC": row[f"forward_macs_per_{sample}"],
        "forward GFLOP": row[f"forward_flops_per_{sample}"],
        "backward GFLOP": row[f"backward_flops_per_{sample}"],
        "FLOP %": row["step_flops_share"],
        "fused MB": row[f"bytes_per_{sample}_min"],
        "fused %": row["bytes_min_share"],
        "eager MB": row[f"bytes_per_{sample}_max"],
        "eager %": row["bytes_max_share"],
    }


def _table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of rows by their headings, the numbers in the units that these end with."""
    columns: dict[str, Any] = {heading: heading for heading in rows[0]}
    for heading in rows[0]:
        if (unit := heading.rpartition(" ")[2]) in _UNITS:
            columns[heading] = (heading, partial(_in, _UNITS[unit]))
    return table_of("complexity", rows, columns, title)


def _in(unit: float | None, value: float) -> str:
    """A number in a unit: 4.089, 24.30, 294.5, 1,086; whole without one."""
    if unit is None:
        return f"{value:,}"
    number = value / unit
    decimals = next((n for n, limit in ((3, 10), (2, 100), (1, 1000)) if number < limit), 0)
    return f"{number:,.{decimals}f}"


def _notes(found: Sequence[Counted]) -> Iterator[str]:
    for item in found:
        remarks = (
            (item.recomputed_flops, "checkpoints compute {} again; these are not in the step's."),
            (
                item.step_flops - (item.required_flops or item.step_flops),
                "{} are not required: "
                "masks hide them, or they are of experts on tokens that went to others.",
            ),
            (item.causal_skipped_flops, "fused kernels may skip {}, under causal masks."),
            (item.fp32_flops if item.fp32_share else 0, "amp leaves {} of its products in fp32."),
            (item.half_share * item.step_flops, "fp8 leaves {} of its products in 16 bits."),
        )
        for flops, words in remarks:
            if flops:
                work = f"{_in(1e9, flops / item.batch_size)} GFLOP per {item.sample}"
                yield f"{item.arch}: {words.format(work)}"
        if item.required_missing:
            yield f"{item.arch}: the required FLOP are not known: {item.required_missing}."
    yield (
        "A multiply-add is 2 FLOP. Small: elementwise ops and norms, counted separately. Least: "
        f"what {found[0].cache_bytes / 2**20:.0f} MiB of cache cannot save. "
        f"Method: {found[0].method}."
    )

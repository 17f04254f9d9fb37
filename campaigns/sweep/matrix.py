"""A run matrix, and the runs of a campaign in the order in which they are measured.

A matrix is blocks of lists, each block the product of its lists less what it excludes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from pathlib import Path
from random import Random

from bench.config import FILING_FIELDS, RunConfig, parse_config
from bench.errors import UserError
from campaigns.sweep import matrix_file
from campaigns.sweep.matrix_file import Entry, Problems, Scalar

_FIELDS = tuple(name for name in RunConfig.model_fields if name not in FILING_FIELDS)
_FILE_KEYS = ("name", "description", "seed", "repeats", "defaults", "exclude", "blocks")
_BLOCK_KEYS = ("name", "repeats", "exclude")
#: Above this many runs a matrix is more likely a mistake than a plan.
MANY_RUNS = 2000
#: Refused even with --yes: the list of runs itself would fill the memory.
_MAX_RUNS = 1_000_000

Lists = dict[str, tuple[Scalar, ...]]


@dataclass(frozen=True)
class Block:
    """One product of lists; its configurations differ in nothing that files them."""

    name: str
    repeats: int
    configs: tuple[RunConfig, ...]


@dataclass(frozen=True)
class Matrix:
    """A whole matrix; `seed` shuffles the order of its runs."""

    name: str
    seed: int
    blocks: tuple[Block, ...]

    @property
    def runs(self) -> int:
        """Number of runs, repeats included."""
        return sum(block.repeats * len(block.configs) for block in self.blocks)


def read_matrix(
    path: Path, overrides: Mapping[str, str] | None = None, *, many: bool = False
) -> Matrix:
    """Return the matrix of a YAML file, every configuration in it valid.

    `overrides` replace a field in every block. Raises `UserError` with everything that is wrong,
    each with its line; also above `MANY_RUNS` runs unless `many`.
    """
    problems = Problems(path)
    file = matrix_file.read_entries(path, problems)
    reader = _Reader(problems, overrides or {})
    reader.refuse_unknown(file, _FILE_KEYS)
    defaults = reader.lists(file.entries.get("defaults"), "defaults")
    excludes = reader.excludes(file.entries.get("exclude"))
    repeats = reader.count(file.entries.get("repeats"), "repeats", 1, 1000)
    seed = reader.count(file.entries.get("seed"), "seed", 0, 2**32 - 1)
    drafts = [
        reader.draft(entry, index, defaults, excludes, repeats)
        for index, entry in enumerate(reader.blocks(file))
    ]
    problems.raise_if_any()
    _refuse_too_many(path, sum(draft.size for draft in drafts), many)
    blocks = tuple(reader.block(draft) for draft in drafts)
    if not overrides:
        reader.refuse_idle_excludes()
    problems.raise_if_any()
    name = file.entries.get("name")
    return Matrix(
        name=name.text if isinstance(name, Scalar) else path.stem,
        seed=seed,
        blocks=blocks,
    )


@dataclass(frozen=True)
class _Draft:
    """A block whose lists are read and whose product is not made yet."""

    name: str
    line: int
    repeats: int
    lists: Lists
    excludes: tuple[Lists, ...]

    @property
    def size(self) -> int:
        return self.repeats * math.prod(map(len, self.lists.values()))


class _Reader:
    """Turns entries into lists and notes what is wrong with them."""

    def __init__(self, problems: Problems, overrides: Mapping[str, str]) -> None:
        self._problems = problems
        self._overrides = {name: (Scalar(text, 0),) for name, text in overrides.items()}
        self._idle_excludes: list[tuple[Entry, Lists]] = []

    def refuse_unknown(self, mapping: matrix_file.Mapping, known: tuple[str, ...]) -> None:
        """Note every key that is none of `known`."""
        for key, line in mapping.key_lines.items():
            if key not in known:
                near = get_close_matches(key, known, n=1)
                remedy = f"did you mean {near[0]}?" if near else f"use {', '.join(known)}"
                self._problems.add(line, f"{key!r} is not known here; {remedy}")

    def blocks(self, file: matrix_file.Mapping) -> tuple[Entry, ...]:
        """Return the entries under `blocks`."""
        blocks = file.entries.get("blocks")
        if isinstance(blocks, matrix_file.Sequence) and blocks.items:
            return blocks.items
        line = file.key_lines.get("blocks", file.line)
        self._problems.add(line, "blocks: give a list of at least one block")
        return ()

    def count(self, entry: Entry | None, name: str, least: int, most: int) -> int:
        """Return a whole number; `least` where none is given or it is wrong."""
        if entry is None:
            return least
        if isinstance(entry, Scalar) and entry.text.isascii() and entry.text.isdigit():
            number = int(entry.text[:20])
            if least <= number <= most:
                return number
        shown = f"={entry.text!r}" if isinstance(entry, Scalar) else ""
        self._problems.add(entry.line, f"{name}{shown}: give a whole number, {least} to {most}")
        return least

    def lists(self, entry: Entry | None, where: str, others: tuple[str, ...] = ()) -> Lists:
        """Return the fields of a mapping, each a list of at least one scalar."""
        if entry is None:
            return {}
        if not isinstance(entry, matrix_file.Mapping):
            self._problems.add(entry.line, f"{where}: give fields and their values")
            return {}
        self.refuse_unknown(entry, (*others, *_FIELDS))
        return {
            name: self._scalars(name, value)
            for name, value in entry.entries.items()
            if name in _FIELDS
        }

    def _scalars(self, name: str, value: Entry) -> tuple[Scalar, ...]:
        items = value.items if isinstance(value, matrix_file.Sequence) else (value,)
        if not items:
            self._problems.add(value.line, f"{name}: the list is empty; leave the field out")
        scalars = tuple(item for item in items if isinstance(item, Scalar))
        if len(scalars) < len(items):
            self._problems.add(value.line, f"{name}: give a value or a list of values")
        for scalar in scalars:
            self._check(name, scalar)
        return scalars

    def _check(self, name: str, scalar: Scalar) -> None:
        try:
            parse_config({name: scalar.text})
        except UserError as error:
            self._problems.add(scalar.line, str(error))

    def excludes(self, entry: Entry | None) -> tuple[Lists, ...]:
        """Return what is left out: a configuration that fits every field of one of them."""
        if entry is None:
            return ()
        items = entry.items if isinstance(entry, matrix_file.Sequence) else (entry,)
        excludes = [(item, self.lists(item, "exclude")) for item in items]
        self._idle_excludes += excludes
        return tuple(lists for _, lists in excludes)

    def refuse_idle_excludes(self) -> None:
        """Note every exclude that left nothing out: a slip in it would otherwise go unseen."""
        for entry, _ in self._idle_excludes:
            self._problems.add(entry.line, "exclude: no configuration fits it")

    def draft(
        self, entry: Entry, index: int, defaults: Lists, excludes: tuple[Lists, ...], repeats: int
    ) -> _Draft:
        """Read one block."""
        lists = defaults | self.lists(entry, "block", _BLOCK_KEYS) | self._overrides
        inside = entry.entries if isinstance(entry, matrix_file.Mapping) else {}
        name = inside.get("name")
        own = inside.get("repeats")
        return _Draft(
            name=name.text if isinstance(name, Scalar) else f"block {index + 1}",
            line=entry.line,
            repeats=repeats if own is None else self.count(own, "repeats", 1, 1000),
            lists=lists,
            excludes=(*excludes, *self.excludes(inside.get("exclude"))),
        )

    def block(self, draft: _Draft) -> Block:
        """Make the product of a block's lists; each configuration once."""
        configs: dict[RunConfig, None] = {}
        sound = True
        for values in _product(draft.lists):
            if fitting := [each for each in draft.excludes if _fits(values, each)]:
                self._idle_excludes = [
                    (entry, lists)
                    for entry, lists in self._idle_excludes
                    if not any(lists is each for each in fitting)
                ]
                continue
            try:
                configs[_on_one_machine(parse_config(values))] = None
            except UserError as error:
                self._problems.add(draft.line, f"{draft.name}: {error}")
                sound = False
        if sound and not configs:
            self._problems.add(draft.line, f"{draft.name}: everything in it is excluded")
        return Block(draft.name, draft.repeats, tuple(configs))


def _product(lists: Lists) -> Iterator[dict[str, str]]:
    for values in product(*lists.values()):
        yield {name: value.text for name, value in zip(lists, values, strict=True)}


def _on_one_machine(config: RunConfig) -> RunConfig:
    """Refuse a run whose machines would have to be started together; a sweep has one each time."""
    if config.nodes > 1:
        raise UserError(
            f"nodes={config.nodes}: a sweep gives each run one machine; "
            f"start mlproject run --nodes {config.nodes} on each of them"
        )
    return config


def _fits(values: Mapping[str, str], exclude: Lists) -> bool:
    return bool(exclude) and all(
        values.get(name) in {scalar.text for scalar in scalars} for name, scalars in exclude.items()
    )


def _refuse_too_many(path: Path, runs: int, many: bool) -> None:
    if runs > _MAX_RUNS or (runs > MANY_RUNS and not many):
        remedy = "shorten its lists" + (", or say --yes" if runs <= _MAX_RUNS else "")
        raise UserError(f"matrix={str(path)!r}: {runs:,} runs; {remedy}")


@dataclass(frozen=True)
class Plan:
    """`runs` in order; `left_out` says which blocks do not fit this machine, and why."""

    runs: tuple[RunConfig, ...]
    left_out: tuple[str, ...]


def plan_runs(
    matrix: Matrix,
    *,
    campaign: str,
    env: str = "auto",
    backends: Collection[str],
    only: str | None = None,
    limit: int | None = None,
) -> Plan:
    """Return the runs of `matrix` on a machine that has `backends`.

    Every configuration once, then every configuration a second time, and so on, each round
    shuffled by the matrix's seed: what drifts while a sweep runs (heat, a neighbour on the host)
    then falls on all configurations alike. `only` keeps the configurations of that backend;
    `limit` keeps the first so many of the matrix, with all their repeats.
    """
    asked = _repeats(matrix, only)
    repeats = {
        config: times for config, times in asked.items() if config.backend in ("auto", *backends)
    }
    configs = list(repeats)[:limit]
    runs: list[RunConfig] = []
    for repeat in range(1, max((repeats[config] for config in configs), default=0) + 1):
        turn = [config for config in configs if repeat <= repeats[config]]
        Random(f"{matrix.seed}:{repeat}").shuffle(turn)  # noqa: S311 - an order, not a secret
        filing = {"repeat": repeat, "campaign": campaign, "env": env}
        runs += [config.model_copy(update=filing) for config in turn]
    left_out = tuple(
        f"{block.name}: needs {' or '.join(sorted({each.backend for each in block.configs}))}"
        for block in matrix.blocks
        if any(config in asked for config in block.configs)
        and not any(config in repeats for config in block.configs)
    )
    return Plan(tuple(runs), left_out)


def _repeats(matrix: Matrix, only: str | None) -> dict[RunConfig, int]:
    """How often each configuration is measured; where blocks overlap, the most counts."""
    repeats: dict[RunConfig, int] = {}
    for block in matrix.blocks:
        for config in block.configs:
            if only in (None, config.backend):
                repeats[config] = max(block.repeats, repeats.get(config, 0))
    return repeats

"""A run matrix: blocks of lists, each block the product of its lists less what it excludes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import product
from pathlib import Path

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from bench.config import FILING_FIELDS, RunConfig, check_field, parse_config
from bench.errors import UserError
from campaigns.sweep.matrix_file import Problems, read_mapping

_FIELDS = tuple(name for name in RunConfig.model_fields if name not in FILING_FIELDS)
_FILE_KEYS = ("name", "description", "seed", "repeats", "defaults", "exclude", "blocks")
_BLOCK_KEYS = ("name", "repeats", "exclude")
#: Above this many runs a matrix is more likely a mistake than a plan.
MANY_RUNS = 2000
#: Refused even with --yes: the list of runs itself would fill the memory.
_MAX_RUNS = 1_000_000

#: Values by field, as they were written.
Lists = dict[str, tuple[str, ...]]
Exclude = tuple[Node, Lists]


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
    root = read_mapping(path)
    reader = _Reader(problems, overrides or {})
    file = reader.entries(root, "matrix", _FILE_KEYS)
    defaults = file.get("defaults")
    default_lists = reader.lists(reader.entries(defaults, "defaults", _FIELDS)) if defaults else {}
    excludes = reader.excludes(file.get("exclude"))
    repeats = reader.count(file.get("repeats"), "repeats", 1, 1000)
    seed = reader.count(file.get("seed"), "seed", 0, 2**32 - 1)
    blocks = file.get("blocks", root)
    nodes = blocks.value if isinstance(blocks, SequenceNode) else []
    if not nodes:
        problems.add(blocks, "blocks: give a list of at least one block")
    drafts = [
        reader.draft(node, f"block {number}", default_lists, excludes, repeats)
        for number, node in enumerate(nodes, start=1)
    ]
    problems.raise_if_any()
    runs = sum(draft.repeats * math.prod(map(len, draft.lists.values())) for draft in drafts)
    if runs > _MAX_RUNS or (runs > MANY_RUNS and not many):
        remedy = "shorten its lists" + (", or say --yes" if runs <= _MAX_RUNS else "")
        raise UserError(f"matrix={str(path)!r}: {runs:,} runs; {remedy}")
    made = tuple(reader.block(draft) for draft in drafts)
    if not overrides:
        reader.refuse_idle_excludes()
    problems.raise_if_any()
    return Matrix(_word(file.get("name"), path.stem), seed, made)


@dataclass(frozen=True)
class _Draft:
    """A block whose lists are read and whose product is not made yet."""

    name: str
    node: Node
    repeats: int
    lists: Lists
    excludes: tuple[Exclude, ...]


class _Reader:
    """Turns nodes into lists and notes what is wrong with them."""

    def __init__(self, problems: Problems, overrides: Mapping[str, str]) -> None:
        self._problems = problems
        self._overrides = {name: (text,) for name, text in overrides.items()}
        self._idle_excludes: list[Node] = []

    def entries(self, node: Node, where: str, known: tuple[str, ...]) -> dict[str, Node]:
        """Return a mapping's nodes by their keys; note keys that are not known or come twice."""
        found: dict[str, Node] = {}
        if not isinstance(node, MappingNode):
            self._problems.add(node, f"{where}: give fields and their values")
            return found
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                self._problems.add(key, "a key must be a plain word")
            elif key.value not in known:
                near = get_close_matches(key.value, known, n=1)
                remedy = f"did you mean {near[0]}?" if near else f"use {', '.join(known)}"
                self._problems.add(key, f"{key.value!r} is not known here; {remedy}")
            elif key.value in found:
                self._problems.add(key, f"{key.value!r} stands here a second time")
            else:
                found[key.value] = value
        return found

    def count(self, node: Node | None, name: str, least: int, most: int) -> int:
        """Return a whole number; `least` where none is given or it is wrong."""
        if node is None:
            return least
        text = _word(node, "")
        if text.isascii() and text.isdigit() and least <= int(text[:20]) <= most:
            return int(text[:20])
        shown = f"={text!r}" if isinstance(node, ScalarNode) else ""
        self._problems.add(node, f"{name}{shown}: give a whole number, {least} to {most}")
        return least

    def lists(self, entries: Mapping[str, Node]) -> Lists:
        """Return the fields among `entries`, each a list of at least one value."""
        return {name: self._values(name, node) for name, node in entries.items() if name in _FIELDS}

    def _values(self, name: str, node: Node) -> tuple[str, ...]:
        items = node.value if isinstance(node, SequenceNode) else [node]
        if not items:
            self._problems.add(node, f"{name}: the list is empty; leave the field out")
        scalars = [item for item in items if isinstance(item, ScalarNode)]
        if len(scalars) < len(items):
            self._problems.add(node, f"{name}: give a value or a list of values")
        for scalar in scalars:
            try:
                check_field(name, scalar.value)
            except UserError as error:
                self._problems.add(scalar, str(error))
        return tuple(scalar.value for scalar in scalars)

    def excludes(self, node: Node | None) -> tuple[Exclude, ...]:
        """Return what is left out: a configuration that fits every field of one of them."""
        if node is None:
            return ()
        items = node.value if isinstance(node, SequenceNode) else [node]
        self._idle_excludes += items
        return tuple((each, self.lists(self.entries(each, "exclude", _FIELDS))) for each in items)

    def refuse_idle_excludes(self) -> None:
        """Note every exclude that left nothing out: a slip in it would otherwise go unseen."""
        for node in self._idle_excludes:
            self._problems.add(node, "exclude: no configuration fits it")

    def draft(
        self, node: Node, name: str, defaults: Lists, excludes: tuple[Exclude, ...], repeats: int
    ) -> _Draft:
        """Read one block; `name`, `defaults`, `excludes` and `repeats` are those of the file."""
        entries = self.entries(node, "block", (*_BLOCK_KEYS, *_FIELDS))
        own = entries.get("repeats")
        return _Draft(
            name=_word(entries.get("name"), name),
            node=node,
            repeats=repeats if own is None else self.count(own, "repeats", 1, 1000),
            lists=defaults | self.lists(entries) | self._overrides,
            excludes=(*excludes, *self.excludes(entries.get("exclude"))),
        )

    def block(self, draft: _Draft) -> Block:
        """Make the product of a block's lists; each configuration once."""
        configs: dict[RunConfig, None] = {}
        sound = True
        for product_values in product(*draft.lists.values()):
            values = dict(zip(draft.lists, product_values, strict=True))
            if fitting := [node for node, lists in draft.excludes if _fits(values, lists)]:
                self._idle_excludes = [each for each in self._idle_excludes if each not in fitting]
                continue
            try:
                configs[_config(values)] = None
            except UserError as error:
                self._problems.add(draft.node, f"{draft.name}: {error}")
                sound = False
        if sound and not configs:
            self._problems.add(draft.node, f"{draft.name}: everything in it is excluded")
        return Block(draft.name, draft.repeats, tuple(configs))


def _word(node: Node | None, otherwise: str) -> str:
    return str(node.value) if isinstance(node, ScalarNode) else otherwise


def _config(values: dict[str, str]) -> RunConfig:
    """A valid configuration of one machine: a sweep does not start several together."""
    config = parse_config(values, planned=True)
    if config.nodes > 1:
        raise UserError(
            f"nodes={config.nodes}: a sweep gives each run one machine; "
            f"start mlproject run --nodes {config.nodes} on each of them"
        )
    return config


def _fits(values: Mapping[str, str], exclude: Lists) -> bool:
    return bool(exclude) and all(values.get(name) in texts for name, texts in exclude.items())

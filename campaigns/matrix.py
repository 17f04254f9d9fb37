"""A run matrix: blocks of lists, each block the product of its lists less what it excludes."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from bench.config import FILING_FIELDS, RunConfig, check_field, parse_config
from bench.config.model_names import nearest
from bench.errors import UserError

_FIELDS = tuple(name for name in RunConfig.model_fields if name not in FILING_FIELDS)
_BLOCK_KEYS = ("name", "repeats", "exclude", "scaling")
#: Above this many runs a matrix is more likely a mistake than a plan.
MANY_RUNS = 2000
#: Refused even with --yes: the list of runs itself would fill the memory.
_MAX_RUNS = 1_000_000
#: The matrices of this project.
MATRICES = Path(__file__).with_name("matrices")
OURS = ", ".join(sorted(path.stem for path in MATRICES.glob("*.yaml")))
#: They are of 2 KiB; a MiB is not written by hand.
_MAX_BYTES = 2**20


@dataclass(frozen=True)
class Block:
    """One product of lists; its configurations differ in nothing that files them."""

    name: str
    repeats: int
    configs: tuple[RunConfig, ...]


@dataclass(frozen=True)
class Matrix:
    """A whole matrix; `seed` shuffles the order of its runs, `roofs` asks for the roofs first."""

    name: str
    seed: int
    blocks: tuple[Block, ...]
    roofs: bool = False


def read_matrix(
    path: Path, overrides: Mapping[str, str] | None = None, *, many: bool = False
) -> Matrix:
    """Return the matrix of a YAML file, every configuration in it valid.

    `overrides` replace a field in every block. Raises `UserError` with everything that is wrong,
    each with its place, such as `blocks.2.repeats`; also above `MANY_RUNS` runs unless `many`.
    """
    try:
        file = _File.model_validate(_content(path))
    except ValidationError as error:
        raise _refusal(path, "; ".join(map(_problem, error.errors()))) from None
    always = {name: (text,) for name, text in (overrides or {}).items()}
    lists = [file.defaults | block.fields | always for block in file.blocks]
    runs = sum(
        (block.repeats or file.repeats) * math.prod(map(len, fields.values()))
        for block, fields in zip(file.blocks, lists, strict=True)
    )
    if runs > _MAX_RUNS or (runs > MANY_RUNS and not many):
        remedy = "shorten its lists" + (", or say --yes" if runs <= _MAX_RUNS else "")
        raise _refusal(path, f"{runs:,} runs; {remedy}")
    blocks, problems = [], []
    every: list[dict[str, str]] = []
    for number, (block, fields) in enumerate(zip(file.blocks, lists, strict=True), start=1):
        combined = [dict(zip(fields, values, strict=True)) for values in product(*fields.values())]
        excludes = (*file.exclude, *block.exclude)
        kept = [values for values in combined if not any(_fits(values, out) for out in excludes)]
        counts = {values.get("devices", "1") for values in kept}
        if block.scaling is not None and (len(counts) < 2 or "1" not in counts):
            given = ", ".join(sorted(counts))
            why = f"devices=[{given}]: scaling is over one device; give 1 and others, as [1, 2, 4]"
            problems.append(f"blocks.{number}: {why}")
        elif block.scaling == "strong":
            kept, wrong = _scaled(kept)
            problems += [f"blocks.{number}: {why}" for why in wrong]
        configs, wrong = _configs(kept)
        problems += [f"blocks.{number}: {why}" for why in wrong]
        problems += [] if overrides else _idle(block.exclude, combined, f"blocks.{number}.exclude")
        name = block.name or f"block {number}"
        blocks.append(Block(name, block.repeats or file.repeats, configs))
        every += combined
    problems += [] if overrides else _idle(file.exclude, every, "exclude")
    if problems:
        raise _refusal(path, "; ".join(problems))
    return Matrix(file.name or path.stem, file.seed, tuple(blocks), file.roofs == "true")


def _configs(combined: list[dict[str, str]]) -> tuple[tuple[RunConfig, ...], list[str]]:
    """The configurations, each once, and what is wrong with some."""
    configs: dict[RunConfig, None] = {}
    problems: dict[str, None] = {} if combined else {"everything in it is excluded": None}
    for values in combined:
        try:
            config = parse_config(values, planned=True)
        except UserError as error:
            problems[str(error)] = None
            continue
        configs[config] = None
        if config.nodes > 1:
            start = f"start mlproject run --nodes {config.nodes} on each of them"
            problems[f"nodes={config.nodes}: a sweep gives each run one machine; {start}"] = None
    return tuple(configs), list(problems)


def _scaled(combined: list[dict[str, str]]) -> tuple[list[dict[str, str]], list[str]]:
    """The configurations of a batch that all devices share, and what is wrong with some.

    What each device has of it is also measured on one device: it tells what smaller batches cost.
    """
    scaled, problems = [], dict[str, None]()
    for values in combined:
        devices, batch = values.get("devices", "1"), values.get("batch_size", "auto")
        if not batch.isdecimal():
            problems[f"batch_size={batch}: scaling=strong divides it; give a number"] = None
        elif int(batch) % int(devices):
            why = f"batch_size={batch}: scaling=strong divides it by devices={devices}"
            problems[f"{why}; give a multiple of {devices}"] = None
        else:
            values = {**values, "batch_size": f"{int(batch) // int(devices)}"}
            scaled.append({**values, "devices": "1"})
        scaled.append(values)
    return scaled, list(problems)


def _fits(values: Mapping[str, str], exclude: Lists) -> bool:
    """Whether all fields of `exclude` have one of its values; one that is not given its default."""
    return bool(exclude) and all(
        values.get(name, f"{RunConfig.model_fields[name].default}".lower()) in texts
        for name, texts in exclude.items()
    )


def _idle(excludes: list[Lists], combined: list[dict[str, str]], place: str) -> list[str]:
    """Every exclude that left nothing out: a slip in it would otherwise go unseen."""
    return [
        f"{place}.{number}: no configuration fits it"
        for number, exclude in enumerate(excludes, start=1)
        if not any(_fits(values, exclude) for values in combined)
    ]


def _lists(given: Any) -> Lists:
    """Each field's values as a list, every value checked by itself."""
    if not isinstance(given, dict):
        raise ValueError("give fields and their values")
    problems = []
    lists: Lists = {}
    for name, value in given.items():
        texts = value if isinstance(value, list) else [value]
        if name not in _FIELDS:
            problems.append(_unknown_key(name, (*_BLOCK_KEYS, *_FIELDS)))
        elif not texts:
            problems.append(f"{name}: the list is empty; leave the field out")
        elif not all(isinstance(text, str) for text in texts):
            problems.append(f"{name}: give a value or a list of values")
        else:
            lists[name] = tuple(texts)
            for text in texts:
                try:
                    check_field(name, text)
                except UserError as error:
                    problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems))
    return lists


#: Values by field, as they were written.
Lists = dict[str, tuple[str, ...]]
_Repeats = Annotated[int, Field(ge=1, le=1000)]
_Fields = Annotated[Lists, BeforeValidator(_lists)]
_Excludes = Annotated[
    list[_Fields], BeforeValidator(lambda given: given if isinstance(given, list) else [given])
]


class _Block(BaseModel):
    """A block as it is written, its `fields` apart from its own keys."""

    name: str = ""
    repeats: _Repeats | None = None
    exclude: _Excludes = []
    scaling: Literal["weak", "strong"] | None = None
    fields: _Fields = {}

    @model_validator(mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            raise ValueError("give fields and their values")
        own = {name: given[name] for name in _BLOCK_KEYS if name in given}
        return own | {"fields": {name: given[name] for name in given if name not in own}}


class _File(BaseModel):
    """A matrix as it is written."""

    model_config = ConfigDict(extra="forbid")

    name: str = ""
    description: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    repeats: _Repeats = 1
    roofs: Literal["true", "false"] = "false"
    defaults: _Fields = {}
    exclude: _Excludes = []
    blocks: Annotated[list[_Block], Field(min_length=1)]


def _problem(error: Mapping[str, Any]) -> str:
    """One problem of a file with its place, in which blocks are counted from 1."""
    place = ".".join(str(part + 1 if isinstance(part, int) else part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown_key(place, _File.model_fields)
    value = f"={error['input']!r}" if isinstance(error["input"], str) else ""
    return f"{place.removesuffix('.fields')}{value}: {error['msg'].removeprefix('Value error, ')}"


def _unknown_key(name: str, known: Collection[str]) -> str:
    others = nearest(name, known, f"use {', '.join(known)}")
    return f"{name!r} is not known here; {'put it into a block' if name in _BLOCK_KEYS else others}"


class _Loader(yaml.BaseLoader):
    """Keeps each value as the text that was written; a key that stands there twice hides one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        keys = [key.value for key, _ in node.value]
        for number, (key, _) in enumerate(node.value):
            if key.value in keys[:number]:
                why = f"{key.value!r} stands here a second time"
                raise yaml.MarkedYAMLError(problem=why, problem_mark=key.start_mark)
        return found


def _content(path: Path) -> dict[str, Any]:
    """The mapping in the file, every value a text; raises `UserError` where there is none."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise _refusal(path, f"larger than {_MAX_BYTES // 2**20} MiB, no matrix is")
        found = yaml.load(content.decode("utf-8-sig"), Loader=_Loader)  # noqa: S506 - texts only
    except OSError as error:
        raise _refusal(path, f"cannot be read ({error.strerror}); ours are {OURS}") from None
    except UnicodeDecodeError:
        raise _refusal(path, "not UTF-8 text") from None
    except RecursionError:
        raise _refusal(path, "lists nested too deep; a matrix has blocks of lists") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise _refusal(path, f"{where}not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise _refusal(path, f"not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(found, dict):
        raise _refusal(path, "give a mapping with a list of blocks, as docs/sweeps.md has it")
    return found


def _refusal(path: Path, message: str) -> UserError:
    return UserError(f"matrix={str(path)!r}: {message}")

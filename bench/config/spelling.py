"""A configuration's values as the command line has them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from bench.config.run_config import RunConfig


def run_options(config: RunConfig, leave_out: Collection[str] = ()) -> list[str]:
    """Return the options of `mlproject run` that ask for `config`, defaults left out."""
    options = []
    for name, field in RunConfig.model_fields.items():
        value = getattr(config, name)
        if name == "arch" or (value != field.default and name not in leave_out):
            options += [f"--{name.replace('_', '-')}", spelled(value)]
    return options


#: What stands for a value of a type, in a list of what a field takes.
_KINDS = {bool: ("true", "false"), int: ("N",), float: ("NUMBER",), str: ("TEXT",)}


def allowed_values(name: str) -> tuple[str, ...]:
    """Return what the field takes: `auto`, `true`, `N`, in the order of its type."""
    return tuple(dict.fromkeys(_words(RunConfig.model_fields[name].annotation)))


def _words(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from get_args(annotation)
    elif get_origin(annotation) is Annotated:
        yield from _words(get_args(annotation)[0])
    elif annotation in _KINDS:
        yield from _KINDS[annotation]
    else:
        for member in get_args(annotation):
            yield from _words(member)


def spelled(value: object) -> str:
    """Return a field's value as the command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)

"""Where the machines of one measurement meet, from the variables that torchrun's users know."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from bench.config import RunConfig
from bench.errors import UserError

_MOST_PORTS = 65535


@dataclass(frozen=True)
class MeetingPoint:
    """This machine's number, and the address of number 0, which every machine reaches."""

    node: int
    address: str
    port: int


def meeting_point(
    config: RunConfig, environ: Mapping[str, str] = os.environ
) -> MeetingPoint | None:
    """Return where the machines of `config` meet, or None for a single one.

    `MASTER_ADDR`, `MASTER_PORT` and `NODE_RANK` are torchrun's options of the same names. Raises
    `UserError` where one is absent or cannot be.
    """
    if config.nodes == 1:
        return None
    absent = [name for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK") if not environ.get(name)]
    if absent:
        raise UserError(
            f"nodes={config.nodes}: {', '.join(absent)} not set; on every machine set MASTER_ADDR "
            "and MASTER_PORT to one machine's address and a free port of it, and NODE_RANK to 0 "
            "there and 1, 2... elsewhere"
        )
    return MeetingPoint(
        _number("NODE_RANK", environ, config.nodes - 1),
        environ["MASTER_ADDR"],
        _number("MASTER_PORT", environ, _MOST_PORTS),
    )


def node_rank(config: RunConfig, environ: Mapping[str, str] = os.environ) -> int:
    """Return this machine's number; number 0 keeps the record."""
    meeting = meeting_point(config, environ)
    return 0 if meeting is None else meeting.node


def _number(name: str, environ: Mapping[str, str], most: int) -> int:
    text = environ[name]
    if not text.isdecimal() or int(text) > most:
        raise UserError(f"{name}={text!r}: give a whole number from 0 to {most}")
    return int(text)

"""The lines of `perf stat -x` and `perf stat -j`, whatever version of perf wrote them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import UserError

_COLLECT = "collect with perf stat -x, or -j, and without -A, -I or --per-*"
_SEPARATORS = ",;|\t"
#: What a row's first field can be; other lines are the program's own output, or metrics.
_VALUE = r"\d[\d., ]*|<not \w+>"
_ROW = re.compile(rf"(?:{_VALUE})\s*[{_SEPARATORS}]")
_SIGN = re.compile(
    rf'^(?:(?:{_VALUE})\s*([{_SEPARATORS}])[A-Za-z%/]*\1[A-Za-z]|{{"[a-z-]+" *: *"[^"]*", *"unit")',
    re.MULTILINE,
)
#: -A, --per-core and the like put a processor's name first.
_SPLIT_ROW = re.compile(rf"(?:CPU|[SNDCL])\d[-\w]*\s*[{_SEPARATORS}]")
_SPLIT_KEYS = {"interval", "cpu", "core", "socket", "die", "cluster", "cache", "node", "thread"}
_NAME = re.compile(
    r"(?:(?P<pmu>[\w.-]+)/(?P<inside>[^/]+)/|(?P<bare>[^/:]+)(?=$|:))"
    r":?(?P<modifiers>[ukhHGIpPSDWeRb]*)"
)
#: What perf-list(1)'s modifiers u and k leave of both modes; neither and both leave both.
_SCOPES = {(True, False): "user", (False, True): "kernel"}
#: Longer than any count of 64 bits.
_MOST_DIGITS = 25


@dataclass(frozen=True)
class PerfRow:
    """One event: `count` is None with perf's own `why`; `share` of the time that it was counted.

    `count` is what perf prints: scaled up to the whole time where the share is below 1. `pmu` is
    empty where perf names none. A share that an old perf does not print is None.
    """

    line: int
    pmu: str
    event: str
    scope: str
    count: float | None
    why: str
    share: float | None


def is_perf_stat(head: str) -> bool:
    """Whether a file that begins with `head` was written by `perf stat -x` or `-j`."""
    return _SIGN.search(head) is not None


def read_rows(path: Path) -> list[PerfRow]:
    """Return the events of a file that `perf stat -x` or `-j` wrote, in its order.

    Raises `UserError` with file and line where a number is not certain.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    rows: dict[tuple[str, str], PerfRow] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        try:
            row = _row(number, line)
        except _DamagedLineError as error:
            raise UserError(f"{path}, line {number}: {line[:80]!r} {error}; {_COLLECT}") from None
        first = rows.setdefault((row.pmu, row.event), row) if row else None
        if row and first is not row and first:
            raise UserError(
                f"{path}, line {number}: {row.event!r} again, after line {first.line}; "
                "give a file of a single perf stat"
            )
    return list(rows.values())


class _DamagedLineError(ValueError):
    """A line that cannot be what perf wrote, or that says too little; the text says why."""


def _row(number: int, line: str) -> PerfRow | None:
    """The event of a line, or None where it holds none."""
    if _SPLIT_ROW.match(line):
        raise _DamagedLineError("is split by processor")
    fields = _json_fields(line) if line.startswith('{"') else _text_fields(line)
    return None if fields is None else _made(number, *fields)


#: Value, unit, event, percentage of the time, and what parts the fields.
_Fields = tuple[str, str, str, str | None, str]


def _json_fields(line: str) -> _Fields | None:
    try:
        found: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):
        raise _DamagedLineError("is no JSON (a decimal comma? set LC_ALL=C)") from None
    if _SPLIT_KEYS & found.keys():
        raise _DamagedLineError("is split by processor or time")
    if "event" not in found:  # a metric of the event before it
        return None
    value, unit, event = (str(found.get(key, "")) for key in ("counter-value", "unit", "event"))
    percent = found.get("pcnt-running")
    return value, unit, event, None if percent is None else str(percent), ","


def _text_fields(line: str) -> _Fields | None:
    if not _ROW.match(line):
        return None
    # A comma that comes first may be a decimal one, where another character parts the fields.
    other = re.match(rf"(?:{_VALUE})\s*([{_SEPARATORS.replace(',', '')}])", line)
    separator = other[1] if other else ","
    fields = [field.strip() for field in _joined(line.split(separator), separator)]
    if len(fields) < 3:
        raise _DamagedLineError("is no row of perf stat")
    value, unit, event, *rest = fields
    if rest and re.fullmatch(r"\d+\.\d+%", rest[0]):  # the variance of -r
        rest = rest[1:]
    if not any(rest):
        return value, unit, event, None, separator
    if len(rest) < 2 or not rest[0].isdecimal():
        raise _DamagedLineError("has no running time after its event")
    if not re.fullmatch(rf"\d+{_point(separator)}\d\d", rest[1]):
        raise _DamagedLineError(
            "has no percentage after its running time (a decimal comma? set LC_ALL=C)"
        )
    return value, unit, event, rest[1], separator


def _made(
    line: int, value: str, unit: str, event: str, percent: str | None, separator: str
) -> PerfRow:
    if not re.fullmatch(r"[A-Za-z%/]*", unit) or not re.match(r"[A-Za-z]", event):
        raise _DamagedLineError("is no value, unit and event")
    share = None if percent is None else _number(percent, separator) / 100
    if share is not None and share > 1:
        raise _DamagedLineError("was counted for more than the whole time")
    has_reason = value.startswith("<")
    name = _NAME.fullmatch(event)
    modifiers = name["modifiers"] if name else ""
    return PerfRow(
        line=line,
        pmu=(name and name["pmu"]) or "",
        event=((name and (name["inside"] or name["bare"])) or event).lower(),
        scope=_SCOPES.get(("u" in modifiers, "k" in modifiers), "user and kernel"),
        count=None if has_reason else _number(value, separator),
        why=value.strip("<>") if has_reason else "",
        share=share,
    )


def _number(text: str, separator: str) -> float:
    pattern = rf"[0-9]+({_point(separator)}[0-9]+)?"
    if len(text) > _MOST_DIGITS or not re.fullmatch(pattern, text):
        raise _DamagedLineError(f"has {text[:30]!r} where a number must be")
    return int(text) if text.isdecimal() else float(text.replace(",", "."))


def _point(separator: str) -> str:
    """A decimal comma looks like a comma between fields where that parts them."""
    return r"\." if separator == "," else "[.,]"


def _joined(fields: list[str], separator: str) -> list[str]:
    """`cpu/event=0x3,umask=0x8/` is one name, though perf's own separator is in it."""
    if len(fields) > 3 and fields[2].count("/") == 1:
        for end in range(3, len(fields)):
            if "/" in fields[end]:
                name = separator.join(fields[2 : end + 1])
                return [*fields[:2], name, *fields[end + 1 :]]
    return fields

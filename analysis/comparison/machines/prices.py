"""What an hour of a machine costs, by its user's word or dated table, and so a million samples.

There is no price here: they differ by region, contract and week. A machine without one has no cost,
and the reason stands in its place.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path

from analysis.runs.groups import Group
from analysis.runs.quantities import counted, three_digits, whole_number
from analysis.runs.run import Run
from bench.errors import UserError

#: A price is called old after so many days: those on demand change a few times a year, those of
#: spot machines from day to day.
_FRESH_DAYS, _FRESH_SPOT_DAYS = 90, 7
_NEEDED = ("machine", "currency", "date", "source")
_PRICES = ("price_per_h", "spot_price_per_h")
_OPTIONAL = ("zone",)
_CURRENCY = re.compile(r"[A-Z]{3}")
_RATE = re.compile(r"([^\sA-Za-z/]+|[A-Za-z]+)\s*([A-Za-z]{3})?\s*/\s*h\b(.*)")
_EXAMPLE = "write --price gcp-l4=0.71/h, or --price 'gcp-l4=0.21 EUR/h spot 2026-11-01'"


@dataclass(frozen=True)
class Price:
    """What an hour of a whole machine costs, in `currency`, however much of it a run uses.

    `machine` is the machine's label, its cloud machine type or its device; `zone` what the name of
    the zone starts with, any if empty. `spot` is of a machine that may be taken away. `day` is None
    where it was not given.
    """

    machine: str
    per_h: float
    currency: str
    spot: bool
    day: date | None
    source: str
    zone: str = ""

    def age_days(self, today: date) -> int | None:
        """Return how many days the price's date lies back, None without one."""
        return None if self.day is None else (today - self.day).days

    def is_old(self, today: date) -> bool:
        """Whether the price is so old that it may be another by now; False without a date."""
        days = self.age_days(today)
        return days is not None and days > (_FRESH_SPOT_DAYS if self.spot else _FRESH_DAYS)

    @property
    def stated(self) -> str:
        """The price with its date and its source, the same on every day."""
        kind, when = " spot" if self.spot else "", f"of {self.day}" if self.day else "undated"
        return f"{three_digits(self.per_h)} {self.currency}/h{kind}, {when}, {self.source}"

    def words(self, today: date) -> str:
        """Return the price with its date, its age and its source."""
        kind = " spot" if self.spot else ""
        days = self.age_days(today)
        when = "undated"
        if days is not None:
            old = ", old: look it up again" if self.is_old(today) else ""
            when = f"of {self.day} ({counted(days, 'day')} ago{old})"
        return f"{three_digits(self.per_h)} {self.currency}/h{kind}, {when}, {self.source}"


@dataclass(frozen=True)
class Cost:
    """What a million samples cost, in the currency of `price`, from which it follows."""

    per_million_samples: float
    price: Price

    def __str__(self) -> str:
        return f"{three_digits(self.per_million_samples)} {self.price.currency}"


@dataclass(frozen=True)
class Prices:
    """The prices that a user gave by option and by table; those of options go first."""

    of_options: tuple[Price, ...] = ()
    of_table: tuple[Price, ...] = ()
    today: date = date.min

    def __bool__(self) -> bool:
        return bool(self.of_options or self.of_table)

    def cost(self, group: Group, *, spot: bool = False) -> Cost | str:
        """Return what a million samples cost by a group's rate, or why that is not known.

        Price per hour x machines / 3600 / (samples/s) x 10^6.
        """
        if not self:
            return "no price was given"
        price = self._of(group, self.of_options, spot) or self._of(group, self.of_table, spot)
        if price is None:
            kind = "spot price" if spot else "price"
            return f"no {kind} was given for its label, machine type or device"
        machines = whole_number(group.first.settings.get("nodes")) or 1
        per_s = price.per_h * machines / 3600
        return Cost(1e6 * per_s / group.samples_per_s, price)

    @staticmethod
    def _of(group: Group, known: Sequence[Price], spot: bool) -> Price | None:
        """The price of a group's machine: by its label, else its type, else its device.

        Of several the one of the nearest zone, then the newest.
        """
        zone = _zone(group)
        for name in filter(None, _names(group.first)):
            found = [
                one
                for one in known
                if one.spot == spot
                and _folded(one.machine) == _folded(name)
                and zone.startswith(one.zone.casefold())
            ]
            if found:
                return max(found, key=lambda one: (len(one.zone), one.day or date.max))
        return None

    def cost_of_run(self, run: Run) -> Cost | None:
        """Return the cost of one run's samples by the price on demand, else the spot price."""
        if run.samples_per_s is None:
            return None
        costs = (self.cost(Group((run,)), spot=spot) for spot in (False, True))
        return next((cost for cost in costs if isinstance(cost, Cost)), None)

    def check_used(self, runs: Iterable[Run]) -> None:
        """Raise `UserError` for an option's machine that none of `runs` is of, failed ones too."""
        labels = {name for run in runs for name in _names(run)} - {"", "auto"}
        known = {_folded(name) for name in labels}
        for one in self.of_options:
            if _folded(one.machine) not in known:
                raise UserError(
                    f"--price {one.machine}=...: no run is of a machine, machine type or device "
                    f"of this name; there are {', '.join(sorted(labels)) or 'none'}"
                )


NO_PRICES = Prices()


def _names(run: Run) -> tuple[str, str, str]:
    """What a price may call the run's machine; empty where that is not known."""
    environment = run.record.environment if run.record else None
    machine_type = environment.cloud_machine_type if environment else None
    return run.env, machine_type or "", run.settings.get("device", "")


def _zone(group: Group) -> str:
    environment = group.first.record.environment if group.first.record else None
    return ((environment.cloud_zone if environment else None) or "").casefold()


def _folded(name: str) -> str:
    return " ".join(name.casefold().split())


def gather_prices(options: Sequence[str], table: Path | None, today: date | None = None) -> Prices:
    """Return the prices of `--price` options and of a table; an option goes before the table.

    Raises `UserError` for what is not a price, for two of one machine, and as `read_prices`.
    """
    day = today or datetime.now(timezone.utc).date()
    given = [_option(text, day) for text in options]
    for place, one in enumerate(given):
        for other in given[:place]:
            if (_folded(one.machine), one.spot) == (_folded(other.machine), other.spot):
                raise UserError(f"--price {one.machine}: given twice; keep one of them")
    return Prices(tuple(given), tuple(read_prices(table, day) if table is not None else ()), day)


def _option(text: str, today: date) -> Price:
    """The price that `gcp-l4=0.21 EUR/h spot 2026-11-01` spells."""
    machine, equals, rest = (part.strip() for part in text.rpartition("="))
    match = _RATE.fullmatch(rest)
    try:
        if not machine or not equals or match is None:
            raise ValueError("no price per hour of a machine")
        number, currency, words = match.groups()
        spot, day = False, None
        for word in words.split():
            if word.lower() == "spot":
                spot = True
            elif word[0].isdigit():
                day = _day(word, today)
            elif currency is None:
                currency = word
            else:
                raise ValueError(f"{word!r} is neither spot nor a date")
        return Price(
            machine, _number(number), _currency(currency or "USD"), spot, day, "given by --price"
        )
    except ValueError as error:
        raise UserError(f"--price {text!r}: {error}; {_EXAMPLE}") from None


def read_prices(path: Path, today: date) -> list[Price]:
    """Return the prices in a CSV file, or in a JSON file that holds a list of objects.

    Columns: `machine` (machine type, label or device), `price_per_h` and `spot_price_per_h` (one
    may be empty or absent), `currency`, `date`, `source`, and `zone` if it matters. Raises
    `UserError` with the file's name and line, or the number of the object, for what is not so.
    """
    where = f"prices={str(path)!r}"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: cannot be read as UTF-8 text ({error})") from None
    found: list[Price] = []
    seen: dict[tuple[str, str, bool, date | None], str] = {}
    for place, row in _rows(text, where, as_json=path.suffix.lower() == ".json"):
        try:
            for one in _of_row(row, path.name, today):
                key = (_folded(one.machine), one.zone.casefold(), one.spot, one.day)
                if key in seen:
                    raise ValueError(f"{one.machine!r} of this date stands in {seen[key]} too")
                seen[key] = place
                found.append(one)
        except ValueError as error:
            raise UserError(f"{where}, {place}: {error}") from None
    if not found:
        raise UserError(f"{where}: holds no price; its columns are {', '.join(_all_columns())}")
    return found


def _all_columns() -> tuple[str, ...]:
    return ("machine", *_OPTIONAL, *_PRICES, *_NEEDED[1:])


def _rows(text: str, where: str, *, as_json: bool) -> list[tuple[str, Mapping[str, str]]]:
    """Each row with its place, all values as text."""
    try:
        if as_json:
            objects = json.loads(text)
            if not isinstance(objects, list) or not all(isinstance(o, dict) for o in objects):
                raise ValueError("a list of objects is needed, one per machine")
            texts = [
                {f"{key}": "" if value is None else f"{value}" for key, value in one.items()}
                for one in objects
            ]
            return [(f"object {number}", one) for number, one in enumerate(texts, 1)]
        reader = csv.DictReader(text.splitlines(), strict=True, restkey="more than its columns")
        return [
            (
                f"line {reader.line_num}",
                {f"{key}": (f"{value or ''}").strip() for key, value in row.items()},
            )
            for row in reader
        ]
    except (ValueError, csv.Error) as error:
        raise UserError(f"{where}: {error}") from None


def _of_row(row: Mapping[str, str], file: str, today: date) -> list[Price]:
    if unknown := sorted(row.keys() - set(_all_columns())):
        raise ValueError(f"unknown column {unknown[0]!r}; known are {', '.join(_all_columns())}")
    for name in _NEEDED:
        if not row.get(name):
            raise ValueError(f"{name} is empty: a cost needs it")
    prices = {name: _number(row[name]) for name in _PRICES if row.get(name)}
    if not prices:
        raise ValueError(f"no price: fill in {' or '.join(_PRICES)}")
    return [
        Price(
            row["machine"],
            per_h,
            _currency(row["currency"]),
            name == "spot_price_per_h",
            _day(row["date"], today),
            f"{row['source']} ({file})",
            row.get("zone", ""),
        )
        for name, per_h in prices.items()
    ]


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{text!r} is no positive number")
    return value


def _currency(text: str) -> str:
    if not _CURRENCY.fullmatch(text):
        raise ValueError(f"currency {text!r}: write its three capital letters, such as USD or EUR")
    return text


def _day(text: str, today: date) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise ValueError(f"date {text!r}: write it as 2026-11-01") from None
    if day > today:
        raise ValueError(f"date {text}: lies in the future")
    return day

"""What an hour of a machine costs, by its user's word or dated table, and so a million samples.

There is no price here: they differ by region, contract and week. A machine without one has no cost,
and the reason stands in its place.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from analysis.runs.groups import Group
from analysis.runs.run import Run
from analysis.table import read_rows
from analysis.words import three_digits, whole_number
from bench.errors import Unknown, UserError

#: The columns of a price on demand and of a spot price.
_PER_H = ("price_per_h", "spot_price_per_h")
_COLUMNS = ("machine", *_PER_H, "currency", "date", "source")
_OPTION = re.compile(
    r"(?P<machine>.*\S)\s*=\s*(?P<per_h>[^\sA-Za-z/]+|[A-Za-z]+)\s*(?P<currency>[A-Za-z]{3})?"
    r"\s*/\s*h(?P<spot>\s+spot)?(\s+(?P<date>\S+))?",
    re.IGNORECASE,
)
_BY_OPTION = "given by --price"
_EXAMPLE = "write --price gcp-l4=0.71/h, or --price 'gcp-l4=0.21 EUR/h spot 2026-11-01'"


@dataclass(frozen=True)
class Price:
    """What an hour of a whole machine costs, in `currency`, however much of it a run uses.

    `machine` is the machine's label, its cloud machine type or its device. `spot` is of a machine
    that may be taken away. `date` is None where an option did not give it.
    """

    machine: str
    per_h: float
    currency: str
    spot: bool
    date: dt.date | None
    source: str

    def __str__(self) -> str:
        """The price with its date and its source."""
        kind, when = " spot" if self.spot else "", f"of {self.date}" if self.date else "undated"
        return f"{three_digits(self.per_h)} {self.currency}/h{kind}, {when}, {self.source}"

    @property
    def row(self) -> dict[str, object]:
        """The price by the names of columns."""
        date = self.date and self.date.isoformat()
        return {"price_per_h": self.per_h, "currency": self.currency, "price_date": date,
                "price_source": self.source}  # fmt: skip


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

    known: tuple[Price, ...] = ()

    def cost(self, group: Group, *, spot: bool = False) -> Cost | Unknown:
        """Return what a million samples cost by a group's rate, or why that is not known.

        Price per hour x machines / 3600 / (samples/s) x 10^6. A machine's label goes before its
        type, and that before its device; of several rows the newest.
        """
        machines = whole_number(group.first.settings.get("nodes")) or 1
        return self.cost_at(machine_names(group.first), group.samples_per_s / machines, spot=spot)

    def cost_at(
        self, names: Sequence[str], samples_per_s: float, *, spot: bool = False
    ) -> Cost | Unknown:
        """Return what a million samples cost on a machine of these names, the first one's first."""
        if not self.known:
            return Unknown("no price was given")
        folded = [_folded(name) for name in names]

        def rank(price: Price) -> tuple[object, ...]:
            name = -folded.index(_folded(price.machine))
            return price.source == _BY_OPTION, name, price.date or dt.date.max

        fitting = (p for p in self.known if p.spot == spot and _folded(p.machine) in folded)
        price = max(fitting, key=rank, default=None)
        if price is None:
            kind = "spot price" if spot else "price"
            return Unknown(f"no {kind} was given for its label, machine type or device")
        return Cost(1e6 * price.per_h / 3600 / samples_per_s, price)

    def check_names(self, names: Iterable[str]) -> None:
        """Raise `UserError` for an option's machine that is none of `names`."""
        present = {_folded(name): name for name in names if name != "auto"}
        for price in self.known:
            if price.source == _BY_OPTION and _folded(price.machine) not in present:
                raise UserError(
                    f"--price {price.machine}=...: no run is of a machine, machine type or device "
                    f"of this name; there are {', '.join(sorted(present.values())) or 'none'}"
                )


NO_PRICES = Prices()


def machine_names(run: Run) -> list[str]:
    """Return what a price may call the machine of a run: its label, its type, its device."""
    environment = run.record.environment if run.record else None
    machine_type = environment.cloud_machine_type if environment else None
    return [name for name in (run.env, machine_type, run.settings.get("device")) if name]


def _folded(name: str) -> str:
    return " ".join(name.casefold().split())


def gather_prices(options: Sequence[str], table: Path | None) -> Prices:
    """Return the prices of `--price` options and of a CSV file; an option goes before the file.

    The file's columns: `machine` (machine type, label or device), `price_per_h` and
    `spot_price_per_h` (one may be empty or absent), `currency`, `date` and `source`. Raises
    `UserError` for what is not a price, with the line of the file, and for two of one machine.
    """
    by_machine: dict[Hashable, Price] = {}
    for text in options:
        match = _OPTION.fullmatch(text.strip())
        try:
            if match is None:
                raise ValueError("no price per hour of a machine")
            row = {name: match[name] for name in ("machine", "date") if match[name]}
            row |= {"currency": match["currency"] or "USD", "source": _BY_OPTION}
            (price,) = _of_row({**row, _PER_H[bool(match["spot"])]: match["per_h"]})
        except ValueError as error:
            raise UserError(f"--price {text!r}: {error}; {_EXAMPLE}") from None
        if by_machine.setdefault((_folded(price.machine), price.spot), price) is not price:
            raise UserError(f"--price {price.machine}: given twice; keep one of them")
    return Prices((*by_machine.values(), *(_read(table) if table else ())))


def _read(path: Path) -> list[Price]:
    def key(price: Price) -> dict[Hashable, str]:
        named = (_folded(price.machine), price.spot, price.date)
        return {named: f"{price.machine!r} of this date"}

    def parse(row: Mapping[str, str]) -> Iterator[Price]:
        return _of_row({**dict.fromkeys(_COLUMNS, ""), **row})

    prices = read_rows(path, f"prices={str(path)!r}", _COLUMNS, parse, key)
    return [replace(price, source=f"{price.source} ({path.name})") for price in prices]


def _of_row(row: Mapping[str, str]) -> Iterator[Price]:
    """The prices of a row, on demand and spot; raises `ValueError` in a person's words.

    Only that of an option may have no `date`.
    """
    if unknown := [name for name in row if name not in _COLUMNS]:
        raise ValueError(f"unknown column {unknown[0]!r}; known are {', '.join(_COLUMNS)}")
    texts = {name: text.strip() for name, text in row.items() if text.strip() or name == "date"}
    rates = {name: text for name, text in texts.items() if name in _PER_H}
    if not rates:
        raise ValueError(f"no price: fill in {' or '.join(_PER_H)}")
    for name, (pattern, words) in _VALID.items():
        for text in rates.values() if name == "per_h" else [texts.get(name, "")]:
            if not re.fullmatch(pattern, text):
                raise ValueError(f"{text!r} is no {words}")
    day = _day(texts["date"]) if "date" in texts else None
    for name, rate in rates.items():
        spot, machine, currency = name != _PER_H[0], texts["machine"], texts["currency"]
        yield Price(machine, float(rate), currency, spot, day, texts["source"])


#: What the text of a column is.
_VALID = {
    "machine": (".+", "machine's label, machine type or device"),
    "per_h": (r"(?!0*\.?0*$)\d*\.?\d+", "positive number"),
    "currency": ("[A-Z]{3}", "three capital letters such as USD"),
    "source": (".+", "source of a price"),
}


def _day(text: str) -> dt.date:
    try:
        day = dt.date.fromisoformat(text)
    except ValueError:
        day = dt.date.max
    if day > dt.datetime.now(dt.timezone.utc).date():
        raise ValueError(f"{text!r} is no day up to today, written as 2026-11-01")
    return day

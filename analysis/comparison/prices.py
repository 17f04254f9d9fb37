"""What an hour of a machine costs, by its user's word or dated table, and so a million samples.

There is no price here: they differ by region, contract and week. A machine without one has no cost,
and the reason stands in its place.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from analysis.runs.groups import Group
from analysis.runs.run import Run
from analysis.table import read_rows
from analysis.words import three_digits, whole_number
from bench.errors import Unknown, UserError

_PRICES = ("price_per_h", "spot_price_per_h")
_COLUMNS = ("machine", *_PRICES, "currency", "date", "source")
_OPTION = re.compile(
    r"(?P<machine>.*\S)\s*=\s*(?P<per_h>[^\sA-Za-z/]+|[A-Za-z]+)\s*(?P<currency>[A-Za-z]{3})?"
    r"\s*/\s*h(?P<spot>\s+spot)?(\s+(?P<date>\S+))?",
    re.IGNORECASE,
)
_BY_OPTION = "given by --price"
_EXAMPLE = "write --price gcp-l4=0.71/h, or --price 'gcp-l4=0.21 EUR/h spot 2026-11-01'"


def _date(text: str) -> dt.date | None:
    if not text:
        return None
    date = dt.date.fromisoformat(text)
    if date > dt.datetime.now(dt.timezone.utc).date():
        raise ValueError("lies in the future")
    return date


class Price(BaseModel):
    """What an hour of a whole machine costs, in `currency`, however much of it a run uses.

    `machine` is the machine's label, its cloud machine type or its device. `spot` is of a machine
    that may be taken away. `date` is None where an option did not give it. What a wrong value
    should be is its description.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)

    machine: str = Field(min_length=1, description="no machine's label, machine type or device")
    per_h: float = Field(gt=0, allow_inf_nan=False, description="no positive number")
    currency: str = Field(pattern="^[A-Z]{3}$", description="no three capital letters such as USD")
    spot: bool = False
    date: Annotated[dt.date | None, BeforeValidator(_date)] = Field(
        description="no day up to today, written as 2026-11-01"
    )
    source: str = Field(min_length=1, description="no source of a price")

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

    def __bool__(self) -> bool:
        return bool(self.known)

    def cost(self, group: Group, *, spot: bool = False) -> Cost | Unknown:
        """Return what a million samples cost by a group's rate, or why that is not known.

        Price per hour x machines / 3600 / (samples/s) x 10^6. A machine's label goes before its
        type, and that before its device; of several rows the newest.
        """
        machines = whole_number(group.first.settings.get("nodes")) or 1
        return self.cost_at(_names(group.first), group.samples_per_s / machines, spot=spot)

    def cost_at(
        self, names: Sequence[str], samples_per_s: float, *, spot: bool = False
    ) -> Cost | Unknown:
        """Return what a million samples cost on a machine of these names, the first one's first."""
        if not self:
            return Unknown("no price was given")
        folded = [_folded(name) for name in names]

        def rank(one: Price) -> tuple[object, ...]:
            name = -folded.index(_folded(one.machine))
            return one.source == _BY_OPTION, name, one.date or dt.date.max

        priced = [one for one in self.known if one.spot == spot]
        fitting = (one for one in priced if _folded(one.machine) in folded)
        price = max(fitting, key=rank, default=None)
        if price is None:
            kind = "spot price" if spot else "price"
            return Unknown(f"no {kind} was given for its label, machine type or device")
        return Cost(1e6 * price.per_h / 3600 / samples_per_s, price)

    def cost_of_run(self, run: Run) -> Cost | None:
        """Return the cost of one run's samples by the price on demand, else the spot price."""
        if run.samples_per_s is None:
            return None
        return self.cost(Group((run,))) or self.cost(Group((run,)), spot=True) or None

    def check_used(self, runs: Iterable[Run]) -> None:
        """Raise `UserError` for an option's machine that none of `runs` is of, failed ones too."""
        self.check_names({name for run in runs for name in _names(run)} - {"auto"})

    def check_names(self, labels: Collection[str]) -> None:
        """Raise `UserError` for an option's machine that is none of `labels`."""
        there = {_folded(name) for name in labels}
        for one in self.known:
            if one.source == _BY_OPTION and _folded(one.machine) not in there:
                raise UserError(
                    f"--price {one.machine}=...: no run is of a machine, machine type or device "
                    f"of this name; there are {', '.join(sorted(labels)) or 'none'}"
                )


NO_PRICES = Prices()


def _names(run: Run) -> list[str]:
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
    found: list[Price] = []
    for text in options:
        try:
            (price,) = _of_option(text)
        except ValueError as error:
            raise UserError(f"--price {text!r}: {error}; {_EXAMPLE}") from None
        if any((_folded(o.machine), o.spot) == (_folded(price.machine), price.spot) for o in found):
            raise UserError(f"--price {price.machine}: given twice; keep one of them")
        found.append(price)
    return Prices((*found, *(_read(table) if table else ())))


def _of_option(text: str) -> Iterator[Price]:
    match = _OPTION.fullmatch(text.strip())
    if match is None:
        raise ValueError("no price per hour of a machine")
    row = {"machine": match["machine"], "currency": match["currency"] or "USD"}
    row |= {"date": match["date"] or "", "source": _BY_OPTION}
    return _of_row({**row, _PRICES[bool(match["spot"])]: match["per_h"]})


def _read(path: Path) -> list[Price]:
    def dated(row: Mapping[str, str]) -> Iterator[Price]:
        for one in _of_row(row):
            if one.date is None:
                raise ValueError(f"'' is {Price.model_fields['date'].description}")
            yield one.model_copy(update={"source": f"{one.source} ({path.name})"})

    def key(one: Price) -> dict[Hashable, str]:
        return {(_folded(one.machine), one.spot, one.date): f"{one.machine!r} of this date"}

    return read_rows(path, f"prices={str(path)!r}", _COLUMNS, dated, key)


def _of_row(row: Mapping[str, str]) -> Iterator[Price]:
    """The prices of a row, on demand and spot; raises `ValueError` in a person's words."""
    given = [name for name in _PRICES if row.get(name)]
    if not given:
        raise ValueError(f"no price: fill in {' or '.join(_PRICES)}")
    values = {name: value for name, value in row.items() if name not in _PRICES}
    for name in given:
        try:
            yield Price.model_validate({**values, "per_h": row[name], "spot": name != _PRICES[0]})
        except ValidationError as error:
            wrong = error.errors()[0]
            field = str(wrong["loc"][0])
            if field not in Price.model_fields:
                known = ", ".join(_COLUMNS)
                raise ValueError(f"unknown column {field!r}; known are {known}") from None
            value = wrong["input"] if wrong["type"] != "missing" else ""
            raise ValueError(f"{value!r} is {Price.model_fields[field].description}") from None

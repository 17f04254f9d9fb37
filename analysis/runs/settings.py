"""The settings by which runs differ: those in effect, and those that were asked for.

Two runs are of one configuration where all that ran is equal. Across machines, and for a run that
ended before `auto` had a value, it is enough that both asked for the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal

from analysis.presentation.columns import Row
from analysis.presentation.words import whole_number
from bench.records.step_settings import OF_DATA

#: Settings by name, in order: equal where two runs had the same ones.
Key = tuple[tuple[str, str], ...]

#: A precision and what only some precisions have: what is left out to hold precisions together.
OF_PRECISION: Final = ("precision", "depthwise_fp32")
#: What a step works on. `auto` is not the same work on every machine.
OF_WORK: Final = frozenset({"batch_size", "image_size", "seq_len"})


@dataclass(frozen=True)
class Identity:
    """The settings of one configuration's runs as text, with machine and device.

    `ran` are those in effect, else those asked for. `asked` are of each run those that read
    otherwise when they were asked for (`auto`). `unknown` are those of a machine that runs lack
    which ended before their device was known: they agree with any.
    """

    ran: Mapping[str, str]
    asked: tuple[Mapping[str, str], ...] = ({},)
    unknown: frozenset[str] = frozenset()

    def key(self, except_for: Collection[str] = ()) -> Key:
        """Return what runs of one configuration have in common, but for some settings."""
        return tuple(sorted(item for item in self.ran.items() if item[0] not in except_for))

    def asked_for(self, name: str) -> tuple[str | None, ...]:
        """Return a setting as each run asked for it."""
        return tuple(asked.get(name, self.ran.get(name)) for asked in self.asked)

    def asked_alike(self, other: Identity, name: str) -> bool:
        """Return whether a run of each asked for the same of a setting."""
        return bool(set(self.asked_for(name)) & set(other.asked_for(name)) - {None})


def same_configuration(
    a: Identity, b: Identity, except_for: Collection[str] = (), *, by: Literal["ran", "asked"]
) -> bool:
    """Return whether two identities have the same settings but for some.

    By what was asked, a setting also agrees where both asked for the same of it, such as `auto`:
    but for the sizes of batch, image and sequence that were resolved, which are work and not a
    means. What of its machine a run does not know agrees with any machine.
    """
    ours, theirs, as_asked = a.ran, b.ran, by == "asked"
    ignored = {*except_for, *a.unknown, *b.unknown} if as_asked else set(except_for)
    return all(
        ours.get(name) == theirs.get(name)
        or (
            as_asked
            and (name not in OF_WORK or "auto" in (ours.get(name), theirs.get(name)))
            and a.asked_alike(b, name)
        )
        for name in chain(ours, theirs)  # in their order, as most pairs differ in the first ones
        if name not in ignored
    )


class _Setting:
    """A setting in effect, as text; `unknown` where nothing says it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, one: Identified, owner: type) -> str:
        return one.identity.ran.get(self._name, "unknown")


class Identified(ABC):
    """What the settings of a configuration, and so of each of its runs, say."""

    env = _Setting()  #: the machine's label
    device = _Setting()
    arch = _Setting()  #: the model
    precision = _Setting()  #: that ran, such as amp-bf16; the one asked for where that is not known
    backend = _Setting()  #: that was used, else the one asked for

    @property
    @abstractmethod
    def identity(self) -> Identity:
        """The settings by which it differs from others."""

    @property
    def distinction(self) -> str:
        """The settings by which it differs from others of its machine, model and precision."""
        return ""

    @property
    def batch_size(self) -> int | None:
        """Samples per forward pass and device, None where that is not a number."""
        return whole_number(self.identity.ran.get("batch_size"))

    @property
    def seq_len(self) -> int | None:
        """Tokens of a sequence, None of a model that takes none."""
        return whole_number(self.identity.ran.get("seq_len"))

    @property
    def precision_label(self) -> str:
        """The precision for people: `fp32 (amp asked for in 1 of 3 runs)` where amp became fp32."""
        asked = self.identity.asked_for("precision")
        amp = [one for one in asked if one is not None and one.startswith("amp")]
        if self.precision.startswith("amp") or not amp:
            return self.precision
        some = f" in {len(amp)} of {len(asked)} runs" if len(amp) < len(asked) else ""
        return f"{self.precision} ({amp[0]} asked for{some})"

    @property
    def identity_row(self) -> Row:
        """What names it in a table, by the names of columns."""
        return {
            "env": self.env,
            "arch": self.arch,
            "differs_in": self.distinction or None,
            "precision": self.precision,
            "precision_label": self.precision_label,
            "batch_size": self.batch_size,
        }

    @property
    def model_label(self) -> str:
        """The model, with what distinguishes it from others of its label."""
        return f"{self.arch} ({self.distinction})" if self.distinction else self.arch

    @property
    def model_and_tokens(self) -> str:
        """The model, with the tokens of a sequence: sequences/s of two lengths do not compare."""
        return self.arch if self.seq_len is None else f"{self.arch}, {self.seq_len} tokens"

    @property
    def series(self) -> str:
        """What was measured where, but for the batch size."""
        return f"{self.env} {self.model_label} {self.precision_label}"

    @property
    def label(self) -> str:
        """What was measured where, for people."""
        return f"{self.series} batch {self.identity.ran.get('batch_size')}"


def is_implied_by(name: str, differing: Collection[str]) -> bool:
    """Return whether a setting differs because another does: the loader's beside synthetic data."""
    return any(
        leader in differing and name in followers for leader, *followers in (OF_PRECISION, OF_DATA)
    )

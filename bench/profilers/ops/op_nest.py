"""From a trace's intervals to nested ops, with their phases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.profilers.ops.timed_step import Kind, SeenOp
from bench.records import Phase

Event = Mapping[str, Any]

_HOST = frozenset({"cpu_op", "user_annotation"})
_ENGINE = "autograd::engine::evaluate_function"
#: The mark that inductor's code sets around a graph; its hash follows.
_COMPILED = "## Call CompiledFxGraph"


class Nest:
    """The host's intervals of one step as trees of ops; `tops` are the outermost, in order.

    `by_id` finds the op of an `External id`. An op that autograd's engine called is backward's;
    what ran after the engine's last is the optimizer's, anything else the forward pass's. Without
    the engine no phase is known. Where `timed` is False the ops have no time of their own.
    """

    def __init__(self, events: Iterable[Event], *, timed: bool) -> None:
        host = [event for event in events if event.get("cat") in _HOST]
        ends = [_end(event) for event in host if event["name"].startswith(_ENGINE)]
        self._backward_end = max(ends, default=None)
        self._timed = timed
        self.by_id: dict[int | None, SeenOp] = {}
        self.tops: list[SeenOp] = []
        threads: defaultdict[Any, list[Event]] = defaultdict(list)
        for event in sorted(host, key=_order):
            threads[event["tid"]].append(event)
        for thread in threads.values():
            self._add(thread)

    def _add(self, events: Sequence[Event]) -> None:
        open_ops: list[tuple[float, SeenOp]] = []
        for event in events:
            while open_ops and event["ts"] >= open_ops[-1][0]:
                open_ops.pop()
            around = open_ops[-1][1] if open_ops else None
            op = self._op(event, around)
            if around is None:
                self.tops.append(op)
            else:
                around.inner.append(op)
                around.own_s = max(0.0, around.own_s - op.own_s)
            open_ops.append((_end(event), op))

    def _op(self, event: Event, around: SeenOp | None) -> SeenOp:
        arguments = event.get("args", {})
        name, kind = _name_and_kind(event)
        op = SeenOp(
            name=name,
            kind=kind,
            phase=self._phase(event, around),
            shapes=_shapes(arguments.get("Input Dims", ())),
            own_s=event["dur"] / 1e6 if self._timed else 0.0,
        )
        if "External id" in arguments:
            self.by_id[arguments["External id"]] = op
        return op

    def _phase(self, event: Event, around: SeenOp | None) -> Phase | None:
        in_backward = around is not None and around.phase == "backward"
        if in_backward or event["name"].startswith(_ENGINE):
            return "backward"
        if self._backward_end is None:
            return None
        return "optimizer" if event["ts"] >= self._backward_end else "forward"


def op_names(events: Iterable[Event]) -> list[str]:
    """Return the name of every op among `events`, however deep it is nested."""
    named = (_name_and_kind(event) for event in events if event.get("cat") in _HOST)
    return [name for name, kind in named if kind is Kind.OP]


def _order(event: Event) -> tuple[float, float, int]:
    """The outer of two intervals first; ops are numbered as they begin."""
    return event["ts"], -event["dur"], event.get("args", {}).get("External id", 0)


def _end(event: Event) -> float:
    end: float = event["ts"] + event["dur"]
    return end


def _name_and_kind(event: Event) -> tuple[str, Kind]:
    printed: str = event["name"]
    if printed.startswith(_COMPILED):
        return "CompiledFxGraph", Kind.REGION
    is_autograds = printed.startswith(("autograd::", "torch::autograd::"))
    if event["cat"] == "cpu_op" and "::" in printed and not is_autograds:
        return printed.removeprefix("aten::").replace("::", "."), Kind.OP
    return printed, Kind.WRAPPER


def _shapes(printed: Iterable[Any]) -> tuple[tuple[int, ...], ...]:
    """The arguments that are tensors with dimensions; some versions nest those of lists."""
    return tuple(
        tuple(shape) for shape in printed if shape and all(isinstance(n, int) for n in shape)
    )

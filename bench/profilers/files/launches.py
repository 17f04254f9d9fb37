"""Which launches a file has shown, in little memory however many there are."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable


class Launches:
    """Remembers launches by process and ID.

    IDs ascend in what Nsight Compute writes, so a process needs a few runs of them; stragglers,
    which are less than an ID before them, go to a set.
    """

    def __init__(self) -> None:
        self._runs: dict[int | str, tuple[list[int], list[int]]] = {}
        self._stragglers: set[tuple[int | str, int]] = set()
        self._groups: set[tuple[str, ...]] = set()

    def add(self, process: int | str, first: int, last: int) -> bool:
        """Note the launches `first` to `last`; False if one of them was there before."""
        starts, ends = self._runs.setdefault(process, ([], []))
        if not ends or first > ends[-1] + 1:
            starts.append(first)
            ends.append(last)
            return True
        if first == ends[-1] + 1:
            ends[-1] = last
            return True
        launches = [(process, launch) for launch in range(first, last + 1)]
        position = bisect_right(starts, last)
        if position and ends[position - 1] >= first:
            return False
        if not self._stragglers.isdisjoint(launches):
            return False
        self._stragglers.update(launches)
        return True

    def add_runs(self, runs: Iterable[tuple[int | str, int, int]]) -> bool:
        """Note all of these launches, or none if one of them was there before or comes twice."""
        lengths = {process: (len(runs[0]), runs[1][-1]) for process, runs in self._runs.items()}
        added: list[tuple[int | str, int, int]] = []
        for run in runs:
            if not self.add(*run):
                self._forget(added, lengths)
                return False
            added.append(run)
        return True

    def _forget(
        self,
        added: list[tuple[int | str, int, int]],
        lengths: dict[int | str, tuple[int, int]],
    ) -> None:
        """Undo what was added since each process had so many runs, the last up to such an ID."""
        for process, first, last in added:
            strays = ((process, launch) for launch in range(first, last + 1))
            self._stragglers.difference_update(strays)
        for process in [*self._runs]:
            starts, ends = self._runs[process]
            if process in lengths:
                count, end = lengths[process]
                del starts[count:], ends[count:]
                ends[-1] = end
            else:
                del self._runs[process]

    def add_group(self, group: tuple[str, ...]) -> bool:
        """Note a summary's group of launches; False if it was there before."""
        if group in self._groups:
            return False
        self._groups.add(group)
        return True

"""Which launches a file has shown, in little memory however many there are."""

from __future__ import annotations

from bisect import bisect_right


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

    def add_group(self, group: tuple[str, ...]) -> bool:
        """Note a summary's group of launches; False if it was there before."""
        if group in self._groups:
            return False
        self._groups.add(group)
        return True

"""Compute the memory that a stage uses, and how many operations fit into a memory limit."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise

from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.lifetimes import Lifetimes


class Memory:
    """The memory of runs. A run is all operations from one possible cut to a later one.

    `start` and `end` are indices of `places`, the possible cuts.
    """

    def __init__(self, lifetimes: Lifetimes, places: list[int]) -> None:
        self._sizes = {key: state.nbytes for key, state in lifetimes.state.items()}
        self._keys: list[Iterable[Hashable]] = []
        self._alive: list[int] = []
        self._written: list[int] = []
        for start, end in pairwise(places):
            uses = lifetimes.uses[start:end]
            self._keys.append(list(dict.fromkeys(key for keys in uses for key in keys)))
            self._alive.append(max(lifetimes.alive[start:end]))
            self._written.append(sum(lifetimes.written[start:end]))

    def state(self, start: int, end: int) -> int:
        """Return the bytes of the state that a run uses."""
        used = {key for keys in self._keys[start:end] for key in keys}
        return sum(map(self._sizes.__getitem__, used))

    def activations(self, start: int, end: int) -> int:
        """Return the peak bytes of the values, other than state, that are live at once."""
        return max(self._alive[start:end]) + sum(self._written[start:end])

    def of(self, start: int, end: int) -> int:
        """Return the bytes of a run's state and activations."""
        return self.state(start, end) + self.activations(start, end)

    def reach(self, limit: int) -> list[int]:
        """Return, for each start, the end of the longest run that uses at most `limit` bytes."""
        ends, end = [], 0
        held: Counter[Hashable] = Counter()
        state = written = 0
        peaks: deque[int] = deque()  # indices into `_alive`, by decreasing value
        for start in range(len(self._keys)):
            if end < start:
                end, state, written = start, 0, 0
                held.clear()
                peaks.clear()
            while end < len(self._keys):
                new = sum(self._sizes[key] for key in self._keys[end] if not held[key])
                alive = max(self._alive[end], self._alive[peaks[0]] if peaks else 0)
                if state + new + written + self._written[end] + alive > limit:
                    break
                held.update(self._keys[end])
                state, written = state + new, written + self._written[end]
                while peaks and self._alive[peaks[-1]] <= self._alive[end]:
                    peaks.pop()
                peaks.append(end)
                end += 1
            ends.append(end)
            if end == start:
                continue
            for key in self._keys[start]:
                held[key] -= 1
                state -= 0 if held[key] else self._sizes[key]
            written -= self._written[start]
            if peaks[0] == start:
                peaks.popleft()
        return ends

    def least(self, stages: int) -> int:
        """Return the least limit for which all operations fit into at most `stages` runs."""
        items = len(self._keys)
        low, high = max(self.of(item, item + 1) for item in range(items)), self.of(0, items)
        while low < high:
            limit = (low + high) // 2
            if self._runs(limit) <= stages:
                high = limit
            else:
                low = limit + 1
        return low

    def _runs(self, limit: int) -> int:
        """Return how many runs the program needs if each run is as long as the limit allows."""
        reach, place, runs = self.reach(limit), 0, 0
        while place < len(reach):
            place, runs = reach[place], runs + 1
        return runs


def limits_of(memory: int | Sequence[int] | None, stages: int) -> list[int] | None:
    """Return the memory limit of each stage; None if there are no limits."""
    if memory is None:
        return None
    limits = memory if isinstance(memory, Sequence) else [memory] * stages
    if not all(type(limit) is int and limit >= 0 for limit in limits):
        raise StageError(f"expected memory limits in bytes, got {memory!r}")
    if len(limits) != stages:
        raise StageError(f"expected {stages} memory limits, one for each stage, got {len(limits)}")
    return list(limits)

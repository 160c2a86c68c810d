"""Divide weighted items into runs: minimize the heaviest run, then the total cost of the cuts.

Position p is before item p, and the last position is after all items. `before[p]` is the total
weight of the items before p, and `costs[p]` the cost of a cut at p. `reach[r][p]` is the last
position where run r may end if it begins at p; it equals p if run r cannot begin there, and does
not decrease with p.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain, repeat
from operator import add, sub
from typing import Any

Reach = Sequence[list[int]]


def least_limit(before: list[int], reach: Reach) -> int | None:
    """Return the least weight of the heaviest run (runs may be empty); None: no division exists."""
    heaviest: int = max(map(sub, before[1:], before))
    low = max(-(-before[-1] // len(reach)), heaviest)
    high = before[-1]
    if farthest(before, reach, high)[-1] < len(before) - 1:
        return None
    while low < high:
        limit = (low + high) // 2
        if farthest(before, reach, limit)[-1] == len(before) - 1:
            high = limit
        else:
            low = limit + 1
    return low


def farthest(before: list[int], reach: Reach, limit: int) -> list[int]:
    """Return the last possible start of each run, then the last possible end of the last run."""
    positions = [0]
    for ends in reach:
        start = positions[-1]
        if start == len(before) - 1:
            positions.append(start)
        else:
            by_weight = bisect_right(before, before[start] + limit) - 1
            positions.append(max(start, min(by_weight, ends[start])))
    return positions


def cheapest(
    before: list[int], costs: list[int] | None, reach: Reach, limit: int
) -> list[int] | None:
    """Find the cheapest cuts into non-empty runs of weight <= `limit`; return the ends of the runs.

    Among divisions of equal cost, each run in turn is as close as possible to an equal share of the
    remaining weight; of two equally close ends, the later is used. If `costs` is None, all cuts
    cost the same. The result is None if no division has only runs of weight <= `limit`.
    """
    distinct = {id(each): each for each in reach}
    ends_of: dict[int, Sequence[int]] = {
        key: _Ends(before, each, limit) for key, each in distinct.items()
    }
    if costs is not None:  # every end is used, so compute all of them
        ends_of = {key: list(each) for key, each in ends_of.items()}
    ends = [ends_of[id(each)] for each in reach]
    starts = _starts(ends)
    if starts is None:
        return None
    values = None
    if costs is not None:
        never = sum(costs) + 1
        values = _least_costs(costs, starts, ends, never)
        if values[0][0] >= never:
            return None
    found, start = [], 0
    for run in range(len(reach) - 1):
        nexts = starts[run + 1]
        first, last = max(start + 1, nexts.start), min(ends[run][start], nexts[-1])
        positions: Sequence[int] = range(first, last + 1)
        if costs is not None and values is not None:
            later, least = values[run + 1], values[run][start - starts[run].start]
            positions = [at for at in positions if costs[at] + later[at - nexts.start] == least]
        start = _closest(before, positions, start, len(reach) - run)
        found.append(start)
    return [*found, len(before) - 1]


def _least_costs(
    costs: list[int], starts: list[range], ends: list[Sequence[int]], never: int
) -> list[list[int]]:
    """Return, for each run and each of its possible starts, the least cost of all later cuts."""
    values = [[0] * len(starts[-1])]
    for run in range(len(starts) - 2, -1, -1):
        nexts = starts[run + 1]
        sums = list(map(add, costs[nexts.start : nexts.stop], values[-1]))
        values.append(_least(sums, starts[run], nexts, ends[run], never))
    return values[::-1]


class _Ends(Sequence[int]):
    """For each start of a run, the last end that `limit` and `reach` allow, computed lazily."""

    def __init__(self, before: list[int], reach: list[int], limit: int) -> None:
        self._before, self._reach, self._limit = before, reach, limit

    def __len__(self) -> int:
        return len(self._before) - 1

    def __getitem__(self, start: Any) -> Any:
        by_weight = bisect_right(self._before, self._before[start] + self._limit) - 1
        return min(by_weight, self._reach[start])


def _starts(ends: list[Sequence[int]]) -> list[range] | None:
    """Return for each run the starts that it has in valid divisions; None: no division is valid."""
    n, last = len(ends), len(ends[0])
    latest = [0]
    for each in ends[:-1]:
        start = latest[-1]
        latest.append(max(start, each[start]) if start < last else last)
    earliest = [last]
    for each in reversed(ends):
        earliest.append(bisect_left(each, earliest[-1]))
    earliest.reverse()
    found = [
        range(max(run, earliest[run]), min(latest[run], last - (n - run)) + 1) for run in range(n)
    ]
    return found if all(found) and found[0].start == 0 else None


def _least(
    values: list[int], starts: range, nexts: range, ends: Sequence[int], never: int
) -> list[int]:
    """Return for each start the least of `values` at the start's possible ends, or `never`."""
    # The possible ends of a start are a window of `nexts`. The windows' bounds never decrease. All
    # windows that contain an end `middle` share the running minima to the left and to the right of
    # `middle`, so the minima are computed once.
    found: list[int] = []
    start = starts.start
    while start < starts.stop:
        first, middle = max(start + 1, nexts.start), min(ends[start], nexts[-1])
        if middle < first:
            found.append(never)
            start += 1
            continue
        stop = min(starts.stop, max(start + 1, middle))  # after the last start that reaches middle
        inside = values[first - nexts.start : middle - nexts.start + 1]
        until = list(accumulate(reversed(inside), min))[::-1]
        finals = [min(end, nexts[-1]) - middle for end in ends[start:stop]]
        offset = middle - nexts.start
        after = list(accumulate(values[offset : offset + finals[-1] + 1], min))
        before = chain(repeat(until[0], min(stop, first) - start - 1), until)
        found.extend(map(min, before, map(after.__getitem__, finals)))
        start = stop
    return found


def _closest(before: list[int], ends: Sequence[int], start: int, runs: int) -> int:
    """Return the one of `ends` with which a run is closest to 1 / `runs` of the remainder."""
    share = before[start] * runs + before[-1] - before[start]  # the ideal before[end], times `runs`
    above = bisect_left(ends, share, key=lambda end: before[end] * runs)
    below = above - 1
    if above == len(ends) or (
        below >= 0 and share - before[ends[below]] * runs < before[ends[above]] * runs - share
    ):
        above = below
    weight = before[ends[above]]
    return ends[bisect_right(ends, weight, key=before.__getitem__) - 1]

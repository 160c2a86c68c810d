"""Divide a list of items into runs of least maximum weight, then of least cost of the cuts.

Positions are numbered from 0, before the first item, to the number of items. `before` has the
total weight of the items before each position. `reach[r][p]` is the last position where run r may
end if it begins at p, and does not decrease with p. If it equals p, run r cannot begin at p.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, chain, repeat
from operator import add, sub
from typing import Any

Reach = Sequence[list[int]]


def least_limit(before: list[int], reach: Reach) -> int | None:
    """Return the least maximum weight of runs, which may be empty here; None if impossible."""
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
    """Return the last position where each run may begin, and where the last run may end."""
    places = [0]
    for ends in reach:
        start = places[-1]
        if start == len(before) - 1:
            places.append(start)
        else:
            by_weight = bisect_right(before, before[start] + limit) - 1
            places.append(max(start, min(by_weight, ends[start])))
    return places


def cheapest(
    before: list[int], costs: list[int] | None, reach: Reach, limit: int
) -> list[int] | None:
    """Return the ends of non-empty runs whose cuts cost least; None if impossible.

    Among divisions of equal cost, each run in turn is closest to an equal share of the remaining
    weight; of two equally close ends, the later one is used. `costs` None: all cuts cost the same.
    """
    different = {id(each): each for each in reach}
    made: dict[int, Sequence[int]] = {
        key: _Ends(before, each, limit) for key, each in different.items()
    }
    if costs is not None:  # every end is used, so compute all of them
        made = {key: list(each) for key, each in made.items()}
    ends = [made[id(each)] for each in reach]
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
        places: Sequence[int] = range(first, last + 1)
        if costs is not None and values is not None:
            later, least = values[run + 1], values[run][start - starts[run].start]
            places = [at for at in places if costs[at] + later[at - nexts.start] == least]
        start = _closest(before, places, start, len(reach) - run)
        found.append(start)
    return [*found, len(before) - 1]


def _least_costs(
    costs: list[int], starts: list[range], ends: list[Sequence[int]], never: int
) -> list[list[int]]:
    """Return, for each run and each position where it may begin, the least cost of later cuts."""
    values = [[0] * len(starts[-1])]
    for run in range(len(starts) - 2, -1, -1):
        nexts = starts[run + 1]
        sums = list(map(add, costs[nexts.start : nexts.stop], values[-1]))
        values.append(_least(sums, starts[run], nexts, ends[run], never))
    return values[::-1]


class _Ends(Sequence[int]):
    """By position where a run begins, except the last: the last possible end, computed lazily."""

    def __init__(self, before: list[int], reach: list[int], limit: int) -> None:
        self._before, self._reach, self._limit = before, reach, limit

    def __len__(self) -> int:
        return len(self._before) - 1

    def __getitem__(self, start: Any) -> Any:
        by_weight = bisect_right(self._before, self._before[start] + self._limit) - 1
        return min(by_weight, self._reach[start])


def _starts(ends: list[Sequence[int]]) -> list[range] | None:
    """Return the positions where each run may begin in a valid division; None: there is none."""
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
    """Return, for each start, the least of `values` among its ends, or `never` without an end."""
    # The bounds of the windows of ends never decrease, so that consecutive windows share an end.
    found: list[int] = []
    start = starts.start
    while start < starts.stop:
        first, middle = max(start + 1, nexts.start), min(ends[start], nexts[-1])
        if middle < first:
            found.append(never)
            start += 1
            continue
        stop = min(starts.stop, max(start + 1, middle))  # of the starts whose windows have `middle`
        inside = values[first - nexts.start : middle - nexts.start + 1]
        until = list(accumulate(reversed(inside), min))[::-1]
        finals = [min(end, nexts[-1]) - middle for end in ends[start:stop]]
        offset = middle - nexts.start
        after = list(accumulate(values[offset : offset + finals[-1] + 1], min))
        before = chain(repeat(until[0], min(stop, first) - start - 1), until)
        found.extend(map(min, before, map(after.__getitem__, finals)))
        start = stop
    return found


def _closest(before: list[int], places: Sequence[int], start: int, runs: int) -> int:
    """Return the end with which a run is closest to an equal share of the remaining weight."""
    share = before[start] * runs + before[-1] - before[start]  # times `runs`
    above = bisect_left(places, share, key=lambda place: before[place] * runs)
    below = above - 1
    if above == len(places) or (
        below >= 0 and share - before[places[below]] * runs < before[places[above]] * runs - share
    ):
        above = below
    weight = before[places[above]]
    return places[bisect_right(places, weight, key=before.__getitem__) - 1]

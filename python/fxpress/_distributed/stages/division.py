"""Divide the operations of a program into stages."""

from __future__ import annotations

from itertools import pairwise
from typing import NoReturn

from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.analysis import Analysis
from fxpress._distributed.stages.lifetimes import Lifetimes
from fxpress._distributed.stages.memory import Memory
from fxpress._distributed.stages.places import places_of_modules
from fxpress._graphs.partition.runs import Reach, cheapest, farthest, least_limit

_EVEN = 1.25  # cuts between modules may make the heaviest stage heavier by this factor


class Division:
    """Finds where each stage ends; StageError if the program cannot be divided.

    `before[i]` is the weight of the first i operations. `limits` has the maximum bytes of each
    stage, or is None. The heaviest stage may exceed its minimum weight by the fraction `slack`.
    """

    def __init__(
        self,
        analysis: Analysis,
        lifetimes: Lifetimes,
        before: list[int],
        stages: int,
        limits: list[int] | None,
        slack: float,
    ) -> None:
        self._analysis, self._lifetimes, self._before = analysis, lifetimes, before
        self._stages, self._limits, self._slack = stages, limits, slack

    def anywhere(self, places: list[int]) -> list[int]:
        """Return the end of each stage; stages may end at any of `places`."""
        reach = self._reach(places)
        return self._cheapest(places, reach, self._least(places, reach))

    def by_modules(self, places: list[int]) -> list[int]:
        """Return the end of each stage; cut between modules, at the least depth `_EVEN` permits."""
        free = self._least(places, self._reach(places))
        best: tuple[int, list[int], Reach] | None = None
        most, refused = 0, None
        for allowed in places_of_modules(self._analysis, places):
            most = max(most, len(allowed) - 1)
            if len(allowed) - 1 < self._stages:
                continue
            reach = self._reach(allowed)
            try:
                limit = self._least(allowed, reach)
            except StageError as error:
                refused = error  # cuts at another depth may fit into the memory limits
                continue
            if best is None or limit < best[0]:
                best = limit, allowed, reach
            if best[0] <= _EVEN * free:
                break
        if best is None:
            raise refused or StageError(
                f"cannot make {self._stages} stages: the program can be cut at {most - 1} places"
                " between modules"
            )
        limit, allowed, reach = best
        return self._cheapest(allowed, reach, limit)

    def _reach(self, places: list[int]) -> Reach:
        """Return, for each stage and start in `places`, the last end within the stage's limit."""
        last = len(places) - 1
        if self._limits is None:
            return [[last] * last] * self._stages
        memory = Memory(self._lifetimes, places)
        known = {limit: memory.reach(limit) for limit in dict.fromkeys(self._limits)}
        return [known[limit] for limit in self._limits]

    def _least(self, places: list[int], reach: Reach) -> int:
        """Return the minimum weight of the heaviest stage."""
        before = [self._before[place] for place in places]
        limit = least_limit(before, reach)
        if limit is None:
            self._refuse(places, reach)
        if all(ends is reach[0] for ends in reach):
            return limit
        # The limits differ. An earlier stage may have to be shorter than its limit allows, so that
        # a later stage with a smaller limit is not empty.
        low, high, free = limit, before[-1], [0] * len(places)
        if cheapest(before, free, reach, low) is not None:
            return low
        if cheapest(before, free, reach, high) is None:
            self._refuse(places, reach)
        while low < high:
            limit = (low + high) // 2
            if cheapest(before, free, reach, limit) is None:
                low = limit + 1
            else:
                high = limit
        return low

    def _cheapest(self, places: list[int], reach: Reach, limit: int) -> list[int]:
        before = [self._before[place] for place in places]
        costs = [*(self._lifetimes.crossing[place] for place in places[:-1]), 0]
        found = cheapest(before, costs, reach, limit + int(limit * self._slack))
        assert found is not None, "_least has found a division within this limit"
        return [places[at] for at in found]

    def _refuse(self, places: list[int], reach: Reach) -> NoReturn:
        """Raise the error for memory limits into which no division fits."""
        assert self._limits is not None
        memory, last = Memory(self._lifetimes, places), len(places) - 1
        if len({*self._limits}) == 1:
            raise StageError(
                f"cannot make {self._stages} stages with at most {self._limits[0]:,} bytes of"
                f" memory each: the lowest possible limit is {memory.least(self._stages):,}"
            )
        starts = farthest([0] * len(places), reach, 0)
        stage = next((k for k, (a, b) in enumerate(pairwise(starts)) if a == b < last), None)
        if stage is not None:
            start, end, what = starts[stage], starts[stage] + 1, "the first operation of the stage"
        elif starts[-1] < last:
            stage, start, end, what = self._stages - 1, starts[-2], last, "the rest of the program"
        else:  # each stage could contain some operations, but no division fits
            stage = self._limits.index(min(self._limits))
            start = min(range(last), key=lambda at: memory.of(at, at + 1))
            end, what = start + 1, "any operation"
        raise StageError(
            f"cannot make {self._stages} stages within these memory limits: stage {stage} may"
            f" use {self._limits[stage]:,} bytes, but {what} needs at least"
            f" {memory.of(start, end):,} bytes"
        )

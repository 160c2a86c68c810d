"""Define the figures of benchmarks, and the goals for figures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from fxpress.decompose import Report
from timing import Ratio, per_node, ratio


@dataclass(frozen=True)
class Goal:
    """A bound for a figure.

    Attributes:
        bound: the highest figure that meets the goal; the lowest where more is better.
        more_is_better: whether a higher figure is better.
        aim: a stricter bound, for information.
        of_ratio: the bound is for the ratio, not for the figure of fxpress.
    """

    bound: float
    more_is_better: bool = False
    aim: float | None = None
    of_ratio: bool = True

    def met(self, value: float) -> bool:
        return value >= self.bound if self.more_is_better else value <= self.bound

    def __str__(self) -> str:
        unit = "x" if self.of_ratio else ""
        aim = f" (aim {self.aim:g}{unit})" if self.aim is not None else ""
        return f"{'>=' if self.more_is_better else '<='} {self.bound:g}{unit}{aim}"


SPLIT_OVER_FLOOR = Goal(1.8)
SPLIT_OVER_TORCH = Goal(16, more_is_better=True, aim=20)
SPLIT_OVER_LAZY = Goal(6, more_is_better=True, aim=8)
FIRST_FORWARD = Goal(5, more_is_better=True)
SOURCE = Goal(2, of_ratio=False)
GROWTH = Goal(1.3)
MEMORY = Goal(200, of_ratio=False)

# The numerators and denominators of ratios.
OVER_CREATION = "fxpress / creation of the result"
OVER_LAZY = "torch, lazy modules / fxpress"


@dataclass(frozen=True)
class Figure:
    """A line of the table.

    Attributes:
        model: the name of the model.
        what: the measured operation.
        unit: the unit of `ours` and `other`.
        ours: fxpress's figure.
        other: the figure of the counterpart.
        ratio: the ratio of the two sides.
        rounds: the number of measurements of which the figures are medians.
        goal: the goal for the figure.
        operation: the name of the operation, if this line is its headline; "" otherwise.
        nodes: the number of nodes for a plot; 0 if no plot needs it.
        sides: the numerator and the denominator of the ratio; one of them is the counterpart.
        group: the group of benchmarks that returned the figure; a run sets it.
    """

    model: str
    what: str
    unit: str
    ours: float
    other: float | None = None
    ratio: Ratio | None = None
    rounds: int = 1
    goal: Goal | None = None
    operation: str = ""
    nodes: int = 0
    sides: str = "torch / fxpress"
    group: str = ""

    @property
    def times_as_fast(self) -> float:
        """Return how many times as fast as its counterpart fxpress is, from times or rates."""
        assert self.other is not None, self.what
        is_rate = self.unit.endswith("/s")
        return self.ours / self.other if is_rate else self.other / self.ours

    @property
    def met(self) -> bool | None:
        """Return whether the goal is met; None without a goal."""
        if self.goal is None:
            return None
        if not self.goal.of_ratio:
            return self.goal.met(self.ours)
        assert self.ratio is not None, self.what
        return self.goal.met(self.ratio.median)


@dataclass(frozen=True)
class Step(Figure):
    """A figure for one step from export to forward of one model.

    Attributes:
        family: the name of the model.
        sizes: "static" or "dynamic".
        difference: where the result differs from torch's; "" if it is equal.
        report: which calls of a decomposition were instantiated from templates.
    """

    family: str = ""
    sizes: str = ""
    difference: str = ""
    report: Report | None = None


def to_record(figure: Figure) -> dict[str, Any]:
    """Return a figure as a dict for a JSON file."""
    return {**asdict(figure), "met": figure.met}


def from_record(record: dict[str, Any]) -> Figure:
    """Return the figure that `to_record` has written."""
    values = {name: value for name, value in record.items() if name != "met"}
    for name, parts in (("ratio", Ratio), ("goal", Goal), ("report", Report)):
        if values.get(name):
            values[name] = parts(**values[name])
    return Step(**values) if "family" in values else Figure(**values)


def growth(what: str, times: dict[int, list[float]], rounds: int) -> Figure:
    """Return the ratio of the times per node of the largest and the smallest graph.

    Args:
        times: number of nodes -> seconds per node in each round.
    """
    small, large = min(times), max(times)
    return Figure(
        f"graph of {large:,} nodes",
        f"{what}, compared with a graph of {small:,} nodes",
        "us/node",
        per_node(times[large], 1),
        per_node(times[small], 1),
        ratio(times[large], times[small]),
        rounds,
        GROWTH,
        sides="larger / smaller graph",
    )


def growth_over_floor(what: str, ratios: dict[int, Ratio], rounds: int) -> Figure:
    """Compare the largest with the smallest graph by their times, as multiples of the floor.

    Args:
        ratios: number of nodes -> the time divided by the floor, the time to create the nodes.
    """
    sizes = min(ratios), max(ratios)
    small, large = (ratios[size] for size in sizes)
    return Figure(
        f"hand-built graph of {sizes[1]:,} nodes",
        f"{what}: time as a multiple of the time for only creating its nodes, "
        f"compared with a graph of {sizes[0]:,} nodes",
        "x",
        large.median,
        small.median,
        Ratio(large.median / small.median, large.low / small.high, large.high / small.low),
        rounds,
        GROWTH,
        sides="larger / smaller graph",
    )

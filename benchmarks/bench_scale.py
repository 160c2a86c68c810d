"""Measure memory and time of split_module for several sizes of graphs; compare with the floor."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass

import torch

import memory
import splits
import worker
from compare import assert_same_split, graph_modules
from figures import MEMORY, OVER_CREATION, OVER_LAZY, Figure, growth_over_floor
from graphs import Case, hand_built
from limits import floor
from timing import Ratio, interleaved, per_node, ratio, stopwatch

PEAK = "peak memory of `split_module` beyond the memory of its result"


@dataclass(frozen=True)
class Point:
    """The measurements of one process.

    Attributes:
        size: calls in the graph.
        times: microseconds per source node, by name: ours, floor, torch, lazy.
        over_floor: the time of fxpress divided by the floor: the time to create the result.
        rounds: the number of measurements of fxpress and of the floor.
        beyond: peak bytes per source node beyond the result; None if not measurable.
        result: bytes per source node of the result.
        torch_rounds: the number of measurements of torch; may be 0.
    """

    size: int
    times: dict[str, float]
    over_floor: Ratio
    rounds: int
    beyond: float | None
    result: float | None
    torch_rounds: int


def measure(size: int, rounds: int, torch_rounds: int) -> Point:
    """Measure one size in a new process."""
    point = worker.run(
        "bench_scale.py", "--size", str(size), "--rounds", str(rounds), "--torch", str(torch_rounds)
    )
    return Point(**{**point, "over_floor": Ratio(**point["over_floor"])})


def work(size: int, rounds: int, torch_rounds: int) -> Point:
    """Measure one size: memory first, before the process frees anything, then equality and time.

    Without rounds of torch's splits (which need minutes for the largest graphs), only the number of
    nodes is checked; smaller graphs of the same construction are compared with torch's.
    """
    torch.set_num_threads(1)
    tiny = hand_built(100)
    assert_same_split(splits.ours(tiny), splits.torch_default(tiny), tiny.inputs)
    case = hand_built(size)
    split, needed = memory.measure(lambda: splits.ours(case))
    if torch_rounds:
        assert_same_split(split, splits.torch_lazy(case), case.inputs)
    assert _calls(case, split) == size, "nodes were lost"

    action = {"ours": stopwatch(lambda: splits.ours(case)), "floor": floor(split)}
    seconds = interleaved(action, rounds)
    if torch_rounds:
        others = {
            "torch": stopwatch(lambda: splits.torch_default(case)),
            "lazy": stopwatch(lambda: splits.torch_lazy(case)),
        }
        del action, split  # live objects slow down torch's garbage collections
        seconds |= interleaved(others, torch_rounds)
    return Point(
        size,
        {name: per_node(times, case.nodes) for name, times in seconds.items() if times},
        ratio(seconds["ours"], seconds["floor"]),
        rounds,
        None if needed is None else needed.beyond / case.nodes,
        None if needed is None else needed.result / case.nodes,
        torch_rounds,
    )


def _calls(case: Case, split: torch.fx.GraphModule) -> int:
    """Return how many nodes of the partitions call a function that the source graph calls."""
    targets = {node.target for node in case.ids}
    graphs = [module.graph for module in graph_modules(split)[1:]]
    return sum(n.target in targets for g in graphs for n in g.nodes if n.op == "call_function")


def figures(points: list[Point]) -> list[Figure]:
    """Return the table's lines about sizes, for points in order of size."""
    lines = [line for point in points for line in _point_figures(point)]
    first, last = points[0], points[-1]
    if first.size != last.size:
        ratios = {p.size: p.over_floor for p in (first, last)}
        lines.append(growth_over_floor("`split_module`", ratios, min(first.rounds, last.rounds)))
    return lines


def _point_figures(point: Point) -> list[Figure]:
    model = f"hand-built graph of {point.size:,} nodes"
    times = point.times
    lines = [
        Figure(
            model,
            "`split_module`, compared with only creating its result",
            "us/node",
            times["ours"],
            times["floor"],
            point.over_floor,
            point.rounds,
            nodes=point.size,
            sides=OVER_CREATION,
        )
    ]
    for name, sides in (("torch", "torch / fxpress"), ("lazy", OVER_LAZY)):
        if name in times:  # not measured in the same rounds, so there are no ratios of rounds
            ours, other = times["ours"], times[name]
            speed = Ratio(other / ours, other / ours, other / ours)
            lines.append(
                Figure(
                    model,
                    "`split_module`",
                    "us/node",
                    ours,
                    other,
                    speed,
                    point.torch_rounds,
                    nodes=point.size,
                    sides=sides,
                )
            )
    if point.beyond is not None:
        lines.append(Figure(model, PEAK, "bytes/node", point.beyond, goal=MEMORY))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", action="store_true", required=True)
    parser.add_argument("--size", type=int, required=True, help="calls in the graph")
    parser.add_argument("--rounds", type=int, required=True, help="of ours and the floor")
    parser.add_argument("--torch", type=int, required=True, help="rounds of torch's splits")
    arguments = parser.parse_args()
    point = work(arguments.size, arguments.rounds, arguments.torch)
    print(json.dumps(asdict(point)))


if __name__ == "__main__":
    main()

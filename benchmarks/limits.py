"""Compare split_module with the floor: the time for only creating its nodes, Graphs and Modules."""

from __future__ import annotations

from torch.fx import GraphModule

import splits
from compare import assert_same_split, graph_modules
from figures import OVER_CREATION, SPLIT_OVER_FLOOR, Figure
from floor import creation_times
from graphs import Case
from timing import Action, interleaved, per_node, ratio, stopwatch


def floor(split: GraphModule) -> Action:
    """Return an action that times only creating copies of the split's GraphModules."""
    modules = graph_modules(split)
    return lambda: creation_times(modules, 1)[0]


def measure(case: Case, rounds: int) -> list[Figure]:
    """Compare the split of fxpress with the floor."""
    split = splits.ours(case)
    assert_same_split(split, splits.torch_default(case), case.inputs)
    seconds = interleaved(
        {"ours": stopwatch(lambda: splits.ours(case)), "floor": floor(split)}, rounds
    )
    return [
        Figure(
            case.name,
            "`split_module`, compared with only creating its result",
            "us/node",
            per_node(seconds["ours"], case.nodes),
            per_node(seconds["floor"], case.nodes),
            ratio(seconds["ours"], seconds["floor"]),
            rounds,
            SPLIT_OVER_FLOOR,
            sides=OVER_CREATION,
        )
    ]

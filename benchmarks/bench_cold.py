"""Measure the first split and the first forward in new processes that have split a tiny graph."""

from __future__ import annotations

import argparse
import gc
import json
import time

import torch

import splits
import worker
from compare import assert_same_split
from figures import Figure
from graphs import Case, hand_built, transformer
from timing import per_node, ratio

SPLITS = {"ours": splits.ours, "torch": splits.torch_default}
WARM_UP = 40  # nodes


def measure(case: Case, rounds: int) -> list[Figure]:
    """Measure torch and fxpress in turn, each time in a new process, which exports the model.

    The results are compared only in this process, for `case`.
    """
    assert_same_split(splits.ours(case), splits.torch_default(case), case.inputs)
    seconds: dict[str, list[float]] = {name: [] for name in SPLITS}
    for _ in range(rounds):
        for name, times in seconds.items():
            times.append(worker.run("bench_cold.py", name))
    return [
        Figure(
            case.name,
            "`split_module` and the first forward of its result, in a new process",
            "us/node",
            per_node(seconds["ours"], case.nodes),
            per_node(seconds["torch"], case.nodes),
            ratio(seconds["torch"], seconds["ours"]),
            rounds,
        )
    ]


def work(name: str) -> float:
    """Split and run a tiny graph; then return the seconds of a split and forward of the model."""
    torch.set_num_threads(1)
    split = SPLITS[name]
    with torch.no_grad():
        tiny = hand_built(WARM_UP)
        split(tiny)(*tiny.inputs)
        case = transformer()
        gc.collect()
        start = time.perf_counter()
        split(case)(*case.inputs)
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", choices=SPLITS, required=True, help="what splits")
    print(json.dumps(work(parser.parse_args().worker)))


if __name__ == "__main__":
    main()

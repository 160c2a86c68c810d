"""All benchmarks: a table, a JSON file and a plot. `python benchmarks/run.py --help`.

Every benchmark first shows that fxpress and torch give the same result, then takes its time. Each
group runs in a process of its own: what one leaves in memory would be in the times of the next.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import torch

import bench_archive
import bench_capture
import bench_cold
import bench_forward
import bench_scale
import bench_serialize
import bench_split
import bench_unflatten
import graphs
import limits
import plot
import programs
import report
from figures import Figure


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
        rounds: measurements of a model in this process.
        flat: measure `split_module` on the graph with lifted parameters as well, and `serialize` on
            18,000 nodes.
        cold_rounds: pairs of fresh processes.
        sizes: hand-built graph -> rounds of ours and the floor, rounds of torch.
        program_sizes: nodes of hand-built programs to unflatten.
        written_sizes: nodes of hand-built programs to serialize.
        weight_bytes: of weights to save, load and clone.
    """

    rounds: int
    flat: bool
    cold_rounds: int
    sizes: dict[int, tuple[int, int]]
    program_sizes: list[int]
    written_sizes: list[int]
    weight_bytes: int


FULL = Effort(
    rounds=7,
    flat=True,
    cold_rounds=5,
    sizes={10_000: (7, 5), 100_000: (5, 3), 1_000_000: (5, 0)},
    program_sizes=[10_000, 100_000],
    written_sizes=[10_000, 1_000_000],
    weight_bytes=2**32,
)
QUICK = Effort(
    rounds=3,
    flat=False,
    cold_rounds=1,
    sizes={10_000: (5, 1), 100_000: (3, 0)},
    program_sizes=[1_000, 10_000],
    written_sizes=[10_000, 100_000],
    weight_bytes=2**28,
)


class Progress:
    """Says on the error stream what is being measured."""

    def __init__(self) -> None:
        self._start = time.time()

    def __call__(self, text: str) -> None:
        seconds = time.time() - self._start
        print(f"[{seconds:4.0f} s] {text}", file=sys.stderr, flush=True)


_Result = TypeVar("_Result")


def _alone(
    measure: Callable[[Effort, Progress], _Result], effort: Effort, progress: Progress
) -> _Result:
    """What a function returns in a new process, in which torch uses one thread."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, torch.set_num_threads, (1,)) as process:
        return process.submit(measure, effort, progress).result()


def main() -> None:
    arguments = _arguments()
    effort = QUICK if arguments.quick else FULL
    arguments.out.mkdir(parents=True, exist_ok=True)
    stem = arguments.out / report.stamp()
    progress = Progress()

    chosen = arguments.groups or [each for each in GROUPS if each != "llama"]
    figures = [
        f for name in chosen if name in GROUPS for f in _alone(GROUPS[name], effort, progress)
    ]
    points = []
    if not arguments.groups or "scale" in chosen:
        points = _alone(_scale_points, effort, progress)
        figures += bench_scale.figures(points)
    progress("done")

    report.show(figures)
    report.save(stem.with_suffix(".json"), figures, {"scale": [asdict(p) for p in points]})
    for path in (stem.with_suffix(".json"), *(plot.draw(points, stem) if points else ())):
        print(path)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, no 1,000,000 nodes")
    parser.add_argument(
        "--groups",
        nargs="+",
        choices=(*GROUPS, "scale"),
        help="only these; otherwise all but llama, which needs transformers",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).with_name("results"),
        help="directory for the JSON file and the plot",
    )
    return parser.parse_args()


def _unflatten_figures(effort: Effort, progress: Progress) -> list[Figure]:
    progress("unflatten: the transformer")
    figures = bench_unflatten.measure_unflatten(
        programs.transformer(), effort.rounds, bench_unflatten.OVER_TORCH
    )
    progress("unflatten: mixture of experts")
    figures += bench_unflatten.measure_unflatten(
        programs.mixture_of_experts(), effort.rounds, bench_unflatten.OVER_TORCH_EXPERTS
    )
    progress("unflatten: growth and state")
    figures += bench_unflatten.measure_growth(effort.program_sizes, effort.rounds)
    return figures + bench_unflatten.measure_state(effort.rounds)


def _forward_figures(effort: Effort, progress: Progress) -> list[Figure]:
    progress("forward of unflattened modules")
    return bench_forward.measure(effort.rounds)


def _serialize_figures(effort: Effort, progress: Progress) -> list[Figure]:
    progress("serialize")
    figures = bench_serialize.measure(effort.rounds, large=effort.flat)
    return figures + bench_serialize.measure_phases(programs.transformer(), effort.rounds)


def _growth_figures(effort: Effort, progress: Progress) -> list[Figure]:
    progress("serialize: growth")
    return bench_serialize.measure_growth(effort.written_sizes, min(effort.rounds, 5))


def _archive_figures(effort: Effort, progress: Progress) -> list[Figure]:
    progress("archives")
    figures = bench_archive.measure(programs.transformer(), effort.rounds)
    return figures + bench_archive.measure_large(effort.weight_bytes, min(effort.rounds, 5))


def _clone_figures(effort: Effort, progress: Progress) -> list[Figure]:
    progress("copies of state")
    return bench_archive.measure_clones(effort.weight_bytes, effort.rounds)


def _capture_figures(effort: Effort, progress: Progress) -> list[Figure]:
    progress("capture")
    return bench_capture.measure(min(effort.rounds, 5))


def _split_figures(effort: Effort, progress: Progress) -> list[Figure]:
    progress(f"exporting the {graphs.LAYERS}-layer transformer")
    module, flat = graphs.transformer_cases()
    progress(f"{module.nodes:,} nodes in {module.partitions} partitions")
    figures = _measure(module, effort.rounds, progress, ALL_OF_A_MODULE)
    progress("cold starts")
    figures += bench_cold.measure(module, effort.cold_rounds)
    benchmarks: dict[str, Benchmark] = {"split simple": bench_split.measure_simple}
    if effort.flat:
        benchmarks["split"] = bench_split.measure_split
    return figures + _measure(flat, effort.rounds, progress, benchmarks)


def _scale_points(effort: Effort, progress: Progress) -> list[bench_scale.Point]:
    points = []
    for size, (rounds, torch_rounds) in effort.sizes.items():
        progress(f"hand-built graph of {size:,} nodes")
        points.append(bench_scale.measure(size, rounds, torch_rounds))
    return points


def _llama_figures(effort: Effort, progress: Progress) -> list[Figure]:
    progress(f"exporting the {graphs.LLAMA_LAYERS}-layer Llama")
    case = graphs.llama()
    if case is None:
        print("no Llama: transformers is not installed")
        return []
    progress(f"{case.nodes:,} nodes in {case.partitions} partitions")
    return _measure(case, effort.rounds, progress, ALL_OF_A_MODULE)


Benchmark = Callable[[graphs.Case, int], list[Figure]]
ALL_OF_A_MODULE: dict[str, Benchmark] = {
    "floor": limits.measure,
    "split": bench_split.measure_split,
    "first forward": bench_split.measure_first_forward,
    "source": bench_split.measure_source,
}


def _measure(
    case: graphs.Case, rounds: int, progress: Progress, benchmarks: dict[str, Benchmark]
) -> list[Figure]:
    figures = []
    for name, benchmark in benchmarks.items():
        progress(f"{case.name}: {name}")
        figures += benchmark(case, rounds)
    return figures


GROUPS: dict[str, Callable[[Effort, Progress], list[Figure]]] = {
    "unflatten": _unflatten_figures,
    "forward": _forward_figures,
    "serialize": _serialize_figures,
    "growth": _growth_figures,
    "archives": _archive_figures,
    "clones": _clone_figures,
    "capture": _capture_figures,
    "split": _split_figures,
    "llama": _llama_figures,
}

if __name__ == "__main__":
    main()

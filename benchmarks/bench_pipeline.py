"""Compare stages from files with torch's `pipeline` on four ranks, and time planning stages."""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.export import export

import pipeline_ranks as ranks
import programs
import worker
from figures import Figure, Goal
from fxpress import pipeline
from timing import ratio

RANKS = 4
PLANNED = 100_000  # nodes
OVER_TORCH = Goal(5, more_is_better=True)
PEAK = Goal(1.1, of_ratio=False)
READ = Goal(1.05, of_ratio=False)
PLANNING = Goal(2, of_ratio=False)

Runs = dict[str, list[list[dict[str, Any]]]]  # way -> rounds -> ranks


def measure(rounds: int, progress: Callable[[str], None]) -> list[Figure]:
    """Measure ranks from files to their first batch; without `transformers`, only the planning."""
    if importlib.util.find_spec("transformers") is None:
        print("no stages of a Llama: transformers is not installed")
        return [_planning(rounds, progress)]
    figures = [_planning(rounds, progress)]
    for shape in ranks.SHAPES:
        with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
            figures += _of_llama(Path(folder), shape, rounds, progress)
    return figures


def _of_llama(
    folder: Path, shape: str, rounds: int, progress: Callable[[str], None]
) -> list[Figure]:
    progress(f"pipeline: a {shape} Llama and its stages")
    torch.manual_seed(0)
    model = ranks.llama(ranks.SHAPES[shape])
    with torch.no_grad():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        wanted = torch.cat([model(part) for part in ranks.batch().split(1)])
    torch.save(model.state_dict(), folder / ranks.MODEL)
    program = export(model, (ranks.example(),))
    name = f"Llama, {ranks.SHAPES[shape].layers} layers, {RANKS} ranks"
    manifest = pipeline.save_stages(program, folder / ranks.STAGES, RANKS, by="module")
    sizes = [stage["state_bytes"] for stage in manifest["stages"]]
    files = [stage["bytes"] for stage in manifest["stages"]]
    del model, program
    found = {}
    for train, what in ((False, "first result"), (True, "first training step")):
        runs: Runs = {"torch": [], "ours": []}
        for number in range(rounds):
            for way in runs:
                progress(f"pipeline: {shape}, {what}, {way}, round {number + 1} of {rounds}")
                runs[way].append(_run(way, folder, shape, train=train))
        found[what] = runs
    for way in ("torch", "ours"):  # both run one microbatch after another
        result = torch.load(folder / ranks.RESULT.format(way), weights_only=True)
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)
    figures = []
    for what, runs in found.items():
        figures += [
            _times(name, f"from files to the {what} of all ranks", "wall", runs, OVER_TORCH, what),
            _times(name, f"from files to the {what}, processor time of all ranks", "cpu", runs),
        ]
    return [*figures, *_sizes(name, found["first result"], sizes, files)]


def _run(way: str, folder: Path, shape: str, *, train: bool) -> list[dict[str, Any]]:
    """Return the report of each rank about a run."""
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def one(rank: int) -> Any:
        more = ["--train"] if train else []
        arguments = (way, *more, str(folder), shape, str(rank), str(RANKS), str(store.port))
        return worker.run("pipeline_ranks.py", *arguments)

    with ThreadPoolExecutor(RANKS) as processes:
        return list(processes.map(one, range(RANKS)))


def _times(
    name: str, what: str, key: str, runs: Runs, goal: Goal | None = None, operation: str = ""
) -> Figure:
    """Return the time until the last rank has its batch, or the sum of all ranks' times."""
    over = max if key == "wall" else sum
    seconds = {way: [over(rank[key] for rank in each) for each in runs[way]] for way in runs}
    medians = {way: statistics.median(each) for way, each in seconds.items()}
    times = ratio(seconds["torch"], seconds["ours"])
    rounds = len(seconds["ours"])
    return Figure(
        name, what, "s", medians["ours"], medians["torch"], times, rounds, goal, operation
    )


def _sizes(name: str, runs: Runs, sizes: list[int], files: list[int]) -> list[Figure]:
    """Return the maximum over ranks of memory and of bytes read, as multiples of stage sizes."""
    figures = []
    for key, what, of, goal in (
        (
            "peak",
            "peak memory of the worst rank, as a multiple of the weights of its stage",
            sizes,
            PEAK,
        ),
        (
            "read",
            "bytes read by the worst rank, as a multiple of the file of its stage",
            files,
            READ,
        ),
    ):
        if any(rank[key] is None for each in runs["ours"] for rank in each):
            continue  # the system has no high-water mark
        over = {
            way: [
                rank[key] / size for each in runs[way] for rank, size in zip(each, of, strict=True)
            ]
            for way in runs
        }
        most = {way: max(each) for way, each in over.items()}
        rounds = len(runs["ours"])
        figures.append(Figure(name, what, "x", most["ours"], most["torch"], None, rounds, goal))
    return figures


def _planning(rounds: int, progress: Callable[[str], None]) -> Figure:
    progress(f"pipeline: planning {PLANNED:,} nodes")
    program = programs.hand_built(PLANNED)
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        plan = pipeline.plan(program.program, 64)
        seconds.append(time.process_time() - start)
    assert plan.stages == 64
    return Figure(
        program.name,
        "plan of 64 stages, processor time",
        "s",
        statistics.median(seconds),
        rounds=rounds,
        goal=PLANNING,
    )

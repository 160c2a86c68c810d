"""Compare fxpress with torch on generated models: prints a table, writes a JSON file and a plot.

A run measures the operations of the README's table in a few minutes; with `--full`, it measures the
long tables of the documentation in about an hour. Every benchmark first checks that fxpress and
torch give the same result, then measures times. Each group runs in a new process, because the
objects that a group leaves in memory would slow down the next group.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch

import plot
import report
from effort import FULL, SHORT, Effort
from figures import Figure
from groups import FULL_GROUPS, GROUPS, SHORT_GROUPS
from progress import Progress


def main() -> None:
    arguments = _arguments()
    effort = replace(
        FULL if arguments.full else SHORT,
        models=tuple(arguments.models),
        model_layers=arguments.layers,
    )
    names = arguments.groups or (FULL_GROUPS if arguments.full else SHORT_GROUPS)
    arguments.out.mkdir(parents=True, exist_ok=True)
    stem = arguments.out / report.utc_time()
    report.show_machine()
    figures = _measure(names, effort, full=arguments.full)
    report.show(figures, goals=arguments.full)
    report.save(stem.with_suffix(".json"), figures)
    for path in (stem.with_suffix(".json"), *plot.draw(figures, stem)):
        print(path)


def _measure(names: Sequence[str], effort: Effort, *, full: bool) -> list[Figure]:
    """Measure groups one after the other, and return their figures."""
    expected = {name: GROUPS[name].full if full else GROUPS[name].short for name in names}
    start = time.time()
    done = 0.0
    figures: list[Figure] = []
    upcoming = _start_process()
    for index, (name, seconds) in enumerate(expected.items(), 1):
        progress = Progress(start, done, sum(expected.values()) - done, time.time())
        with upcoming as process:
            if index < len(expected):
                upcoming = _start_process()
            figures += process.submit(GROUPS[name].measure, effort, progress).result()
        done += seconds
    Progress(start, done, 0, time.time())("done")
    return figures


def _start_process() -> ProcessPoolExecutor:
    """Start a group's process, which imports torch while the previous group is measured."""
    process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    process.submit(_prepare)
    return process


def _prepare() -> None:
    """Make torch use one thread, and silence its warnings about itself."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="large models and graphs, more rounds: about an hour"
    )
    parser.add_argument("--groups", nargs="+", choices=GROUPS, help="only these")
    parser.add_argument(
        "--models",
        nargs="+",
        default=(),
        help="with --groups models: only these, by their names in tests/support/architectures.py",
    )
    parser.add_argument(
        "--layers", type=int, default=8, help="with --groups models: layers of each model"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).with_name("results"),
        help="directory for the JSON file and the plot",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()

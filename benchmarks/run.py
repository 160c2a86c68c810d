"""Compare fxpress with torch on generated models: prints a table, writes a JSON file and a plot.

A run measures the operations of the README's table in a few minutes; with `--full`, it measures
large models and graphs in about 70 minutes. Every benchmark first checks that fxpress and torch
give the same result, then measures times. Each group runs in a new process, because the objects
that a group leaves in memory would slow down the next group. The JSON file is written after each
group. If a group fails, the run continues with the next group, and exits with status 1.

`--full --write docs/benchmarks.md` also writes the documentation's page and its plots. To write
the page again after a change of its text, add `--results` with the JSON file.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import page
import plot
import report
from effort import FULL, SHORT, Effort
from figures import Figure, to_record
from groups import FULL_GROUPS, GROUPS, SHORT_GROUPS
from progress import Progress

ERROR = 300  # characters of an error in the JSON file


def main() -> None:
    arguments = _arguments()
    if arguments.results:
        run = json.loads(arguments.results.read_text())
        if not run["full"]:
            raise SystemExit(f"{arguments.results}: expected the results of a run with --full")
    else:
        run = _measure_and_show(arguments)
    if arguments.write:
        for path in page.write(arguments.write, run):
            print(path)
    sys.exit(1 if run["failed"] else 0)


def _measure_and_show(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure, print the tables, and return the contents of the JSON file."""
    effort = replace(FULL if arguments.full else SHORT, models=tuple(arguments.models))
    if arguments.layers:
        effort = replace(effort, model_layers=arguments.layers)
    names = arguments.groups or (FULL_GROUPS if arguments.full else SHORT_GROUPS)
    arguments.out.mkdir(parents=True, exist_ok=True)
    stem = arguments.out / datetime.now(timezone.utc).strftime("%Y-%m-%dT%H%M%SZ")
    facts = report.facts()
    print("\n".join(f"{name}: {fact}" for name, fact in facts.items()), flush=True)
    run = {"full": arguments.full, "facts": facts, "effort": asdict(effort)}
    run |= {"seconds": {}, "failed": {}, "figures": []}
    figures: list[Figure] = []
    for name, result, seconds in _measure(names, effort, full=arguments.full):
        run["seconds"][name] = seconds
        if isinstance(result, Exception):
            traceback.print_exception(result)
            run["failed"][name] = repr(result)[:ERROR]
        else:
            figures += (replace(figure, group=name) for figure in result)
            run["figures"] = [to_record(figure) for figure in figures]
        facts["load average after the run"] = report.load()
        stem.with_suffix(".json").write_text(json.dumps(run, indent=1) + "\n")
    report.show(figures, goals=arguments.full)
    for path in (stem.with_suffix(".json"), *plot.draw(figures, stem)):
        print(path)
    for name, error in run["failed"].items():
        print(f"the group {name} failed: {error}", file=sys.stderr)
    return run


def _measure(
    names: Sequence[str], effort: Effort, *, full: bool
) -> Iterator[tuple[str, list[Figure] | Exception, float]]:
    """Measure groups one after the other; yield each name, the figures or error, the seconds."""
    expected = {name: GROUPS[name].full if full else GROUPS[name].short for name in names}
    start = time.time()
    done = 0.0
    upcoming = _start_process()
    for index, (name, seconds) in enumerate(expected.items(), 1):
        progress = Progress(start, done, sum(expected.values()) - done, time.time())
        result: list[Figure] | Exception
        with upcoming as process:
            if index < len(expected):
                upcoming = _start_process()
            try:
                result = process.submit(GROUPS[name].measure, effort, progress).result()
            except Exception as error:
                result = error
        yield name, result, time.time() - progress.group_start
        done += seconds
    Progress(start, done, 0, time.time())("done")


def _start_process() -> ProcessPoolExecutor:
    """Start a group's process, which imports torch while the previous group is measured."""
    process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    process.submit(_prepare)
    return process


def _prepare() -> None:
    """Make torch use one thread, and silence warnings."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.ERROR)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="large models and graphs, more rounds: 70 minutes"
    )
    parser.add_argument("--groups", nargs="+", choices=GROUPS, help="only these")
    parser.add_argument(
        "--models",
        nargs="+",
        default=(),
        help="with --groups models: only these, by their names in tests/support/architectures.py",
    )
    parser.add_argument(
        "--layers", type=int, help="of each model of the group models: 8, or 2 with --full"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).with_name("results"),
        help="directory for the JSON file and the plot",
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the page PAGE")
    parser.add_argument(
        "--results", type=Path, metavar="JSON", help="with --write: read figures, do not measure"
    )
    arguments = parser.parse_args()
    if arguments.write and not (arguments.full or arguments.results):
        parser.error("--write needs --full, or --results of a run with --full")
    return arguments


if __name__ == "__main__":
    main()

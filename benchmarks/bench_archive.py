"""Compare saving and loading with torch and with plain reads and writes; time copies of tensors."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

import memory
from figures import Figure, Goal
from fxpress import archive, state
from programs import Program
from timing import Action, interleaved, per_node, ratio, stopwatch

SAVE_OVER_TORCH = Goal(60, more_is_better=True)
LOAD_OVER_TORCH = Goal(40, more_is_better=True)
OF_PLAIN = Goal(0.9, more_is_better=True)
MAPPED = Goal(100, of_ratio=False)
PEAK = Goal(64, of_ratio=False)
SMALL = Goal(5, more_is_better=True)
TENSORS = 64
PIECE = 1 << 24  # the bytes of one plain write or read


def measure(program: Program, rounds: int) -> list[Figure]:
    """Measure saving and loading of a program with small weights."""
    saved = program.program
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = (Path(folder) / side / "model.pt2" for side in ("ours", "torch"))
        for path in (ours, theirs):
            path.parent.mkdir()
        archive.save(saved, ours)
        torch.export.save(saved, theirs)
        _assert_same(ours, theirs, program)
        seconds = interleaved(
            {
                "save": stopwatch(lambda: archive.save(saved, ours)),
                "torch's save": stopwatch(lambda: torch.export.save(saved, theirs)),
                "load": stopwatch(lambda: archive.load(ours)),
                "torch's load": stopwatch(lambda: torch.export.load(theirs)),
            },
            rounds,
        )
    return [
        Figure(
            program.name,
            f"`{what}` of a program with small weights",
            "us/node",
            per_node(seconds[what], program.nodes),
            per_node(seconds[f"torch's {what}"], program.nodes),
            ratio(seconds[f"torch's {what}"], seconds[what]),
            rounds,
            goal,
            what,
        )
        for what, goal in (("save", SAVE_OVER_TORCH), ("load", LOAD_OVER_TORCH))
    ]


def _assert_same(ours: Path, theirs: Path, program: Program) -> None:
    """Assert that torch and fxpress read equal programs from both files."""
    expected = program.program.module()(*program.inputs)
    for path in (ours, theirs):
        for load in (archive.load, torch.export.load):
            assert torch.equal(load(path).module()(*program.inputs), expected)


class Large(torch.nn.Module):  # type: ignore[misc]
    """A module with a graph of two nodes and large weights."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = torch.nn.ParameterList(
            torch.nn.Parameter(torch.rand(size // TENSORS // 4)) for _ in range(TENSORS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weights[0][0]


def measure_large(size: int, rounds: int) -> list[Figure]:
    """Measure files of `size` bytes, compared with a plain write with fsync and a plain read."""
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        return _measure_large(size, rounds, Path(folder))


def _measure_large(size: int, rounds: int, folder: Path) -> list[Figure]:
    name = f"{size / 2**30:g} GiB of weights"
    program = torch.export.export(Large(size), (torch.ones(1),))
    views = [value.detach().numpy() for value in program.state_dict.values()]
    path, plain = folder / "model.pt2", folder / "plain"
    archive.save(program, path)
    loaded = archive.load(path)
    for key, value in program.state_dict.items():
        assert torch.equal(loaded.state_dict[key], value)
    del loaded

    def write() -> None:
        with open(plain, "wb", buffering=0) as file:
            for view in views:
                for start in range(0, view.nbytes, PIECE):
                    file.write(view.view("u1")[start : start + PIECE])
            os.fsync(file.fileno())

    def read() -> list[torch.Tensor]:
        tensors = [torch.empty(view.size) for view in views]
        with open(plain, "rb", buffering=0) as file:
            for tensor in tensors:
                into = memoryview(tensor.numpy()).cast("B")
                for start in range(0, len(into), PIECE):
                    file.readinto(into[start : start + PIECE])
        return tensors

    def from_nothing(call: Callable[[], Any]) -> Action:
        """Return an action that times a call when the file does not exist and the disk is idle."""

        def action() -> float:
            path.unlink(missing_ok=True)
            plain.unlink(missing_ok=True)
            os.sync()
            return stopwatch(call)()

        return action

    seconds = interleaved(
        {"save": from_nothing(lambda: archive.save(program, path)), "write": from_nothing(write)},
        rounds,
    )
    archive.save(program, path)
    write()
    seconds |= interleaved(
        {
            "load": stopwatch(lambda: archive.load(path)),
            "read": stopwatch(read),
            "mapped": stopwatch(lambda: archive.load(path, mmap=True)),
        },
        rounds,
    )
    speed = {what: size / 1e9 / (per_node(times, 1) / 1e6) for what, times in seconds.items()}
    peaks = _peaks(program, path, size)
    figures = [
        Figure(
            name,
            f"`{what}`, compared with a plain {plainly}",
            "GB/s",
            speed[what],
            speed[other],
            ratio(seconds[other], seconds[what]),
            rounds,
            OF_PLAIN,
            sides=f"fxpress / plain {other}",
        )
        for what, other, plainly in (
            ("save", "write", "`write` and `fsync`"),
            ("load", "read", "`read` into new tensors"),
        )
    ]
    ready = per_node(seconds["mapped"], 1) / 1e3
    figures.append(Figure(name, "`load` with `mmap=True`", "ms", ready, rounds=rounds, goal=MAPPED))
    figures += [Figure(name, what, "MiB", peak, goal=PEAK) for what, peak in peaks.items()]
    return figures


def _peaks(program: ExportedProgram, path: Path, size: int) -> dict[str, float]:
    """Return the peak memory of calls in MiB, without the weights that a call returns.

    The dict is empty if the system does not report a peak of memory.
    """
    calls: dict[str, tuple[Callable[[], Any], int]] = {
        "peak memory of `save`": (lambda: archive.save(program, path), 0),
        "peak memory of `load`, less the bytes of the weights": (lambda: archive.load(path), size),
        "peak memory of `load` with `mmap=True`": (lambda: archive.load(path, mmap=True), 0),
    }
    peaks = {}
    for what, (call, expected) in calls.items():
        result, needed = memory.measure(call)
        del result
        if needed is not None:
            peaks[what] = (needed.beyond + needed.result - expected) / 2**20
    return peaks


def measure_clones(size: int, rounds: int) -> list[Figure]:
    """Measure copies of 16 large tensors and of 10,000 small tensors, on all threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        return [*_measure_large_clone(size, 2 * rounds), *_measure_small_clones(6 * rounds)]
    finally:
        torch.set_num_threads(threads)


def _measure_large_clone(size: int, rounds: int) -> list[Figure]:
    tensors = [torch.rand(size // 16 // 4) for _ in range(16)]
    copies = state.clone(tensors)
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))
    del copies
    seconds = interleaved(
        {
            "ours": stopwatch(lambda: state.clone(tensors)),
            "memcpy": lambda: _threaded_copy(tensors),
        },
        rounds,
    )
    speed = {what: size / 1e9 / (per_node(times, 1) / 1e6) for what, times in seconds.items()}
    return [
        Figure(
            f"{size / 2**30:g} GiB of tensors",
            "`state.clone`, compared with `memcpy` on as many threads",
            "GB/s",
            speed["ours"],
            speed["memcpy"],
            ratio(seconds["memcpy"], seconds["ours"]),
            rounds,
            OF_PLAIN,
            sides="fxpress / memcpy",
        )
    ]


def _threaded_copy(tensors: list[torch.Tensor]) -> float:
    """Return the seconds for copying arrays into new memory on all threads."""
    arrays = [tensor.numpy() for tensor in tensors]
    count = torch.get_num_threads()
    copies: list[list[Any]] = [[] for _ in range(count)]

    def work(number: int) -> None:
        copies[number] = [array.copy() for array in arrays[number::count]]

    workers = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.perf_counter() - start


def _measure_small_clones(rounds: int) -> list[Figure]:
    count = 10_000
    tensors = [torch.rand(256) for _ in range(count)]
    assert torch.equal(torch.stack(state.clone(tensors)), torch.stack(tensors))
    seconds = interleaved(
        {
            "ours": stopwatch(lambda: state.clone(tensors)),
            "loop": stopwatch(lambda: [tensor.clone() for tensor in tensors]),
        },
        rounds,
    )
    return [
        Figure(
            f"{count:,} tensors of 1 KiB",
            "`state.clone`, compared with a loop of `Tensor.clone()`",
            "us/tensor",
            per_node(seconds["ours"], count),
            per_node(seconds["loop"], count),
            ratio(seconds["loop"], seconds["ours"]),
            rounds,
            SMALL,
            "state.clone",
            sides="loop / fxpress",
        )
    ]

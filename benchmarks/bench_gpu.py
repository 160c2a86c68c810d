"""Time programs on a GPU, and copies to, from and on it, compared with single large copies."""

from __future__ import annotations

import copy
import functools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram, export

import graphs
from bench_archive import Large
from bench_decompose import TABLES
from bench_whole import measure_table
from figures import Figure, Goal
from fxpress import archive, state
from fxpress.export import module
from fxpress.unflatten import unflatten
from timing import Action, interleaved, per_node, ratio

OF_ONE_COPY = Goal(0.9, more_is_better=True)
LOAD_OF_ONE_COPY = Goal(0.8, more_is_better=True)
OVER_LOOP = Goal(10, more_is_better=True)
OVER_TORCH = Goal(5, more_is_better=True)
NOT_SLOWER = Goal(1.02)
LARGE = 16  # tensors among which the bytes are divided
SMALL = 10_000
LAYERS = 32


def measure(size: int, rounds: int) -> list[Figure]:
    """Measure copies of `size` bytes, and a transformer on the GPU; nothing without a GPU."""
    if not torch.cuda.is_available():
        print("no GPU: its copies are not measured")
        return []
    threads = torch.get_num_threads()
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    try:
        copies = [
            *_measure_large(size, rounds),
            *_measure_small(rounds),
            *_measure_load(size, rounds),
        ]
    finally:
        torch.set_num_threads(threads)
    return copies + _measure_program(rounds)


def _finished(call: Callable[[], Any]) -> Action:
    """Return an action that times a call and the device's work that the call has started."""

    def action() -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        result = call()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        del result
        return seconds

    return action


def _rates(
    model: str,
    what: str,
    size: int,
    seconds: dict[str, list[float]],
    goal: Goal,
    other_side: str = "one large copy",
) -> Figure:
    ours, other = (size / 1e3 / per_node(seconds[side], 1) for side in ("ours", "one copy"))
    found = ratio(seconds["one copy"], seconds["ours"])
    rounds, sides = len(seconds["ours"]), f"fxpress / {other_side}"
    return Figure(model, what, "GB/s", ours, other, found, rounds, goal, sides=sides)


def _measure_large(size: int, rounds: int) -> list[Figure]:
    """Measure copies of a few large tensors, compared with one copy of all their bytes."""
    figures = []
    host = torch.rand(size // 4).pin_memory()
    device = host.cuda()
    to_gpu = functools.partial(state.move, device="cuda")
    to_host = functools.partial(state.move, device="cpu")
    places: dict[str, tuple[torch.Tensor, Callable[[Any], Any], str]] = {
        "`state.clone` on the GPU": (device, state.clone, "cuda"),
        "`state.move` from pinned memory to the GPU": (host, to_gpu, "cuda"),
        "`state.move` from the GPU to the host": (device, to_host, "cpu"),
    }
    for what, (whole, ours, there) in places.items():
        parts = [
            part.clone() if whole is device else part.clone().pin_memory()
            for part in whole.chunk(LARGE)
        ]
        copies = ours(parts)
        assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(copies, parts, strict=True))
        del copies
        target = torch.empty_like(whole, device=there, pin_memory=there == "cpu")
        one = functools.partial(target.copy_, whole, non_blocking=True)
        many = functools.partial(ours, parts)
        seconds = interleaved({"ours": _finished(many), "one copy": _finished(one)}, rounds)
        figures.append(_rates(f"{size / 2**30:g} GiB of tensors", what, size, seconds, OF_ONE_COPY))
    return figures


def _measure_small(rounds: int) -> list[Figure]:
    """Measure copies of many small tensors, compared with loops."""
    figures = []
    host = [torch.rand(256) for _ in range(SMALL)]
    device = [value.cuda() for value in host]
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "`state.clone`, compared with a loop of `Tensor.clone()`": (
            lambda: state.clone(device),
            lambda: [value.clone() for value in device],
        ),
        "`state.move` to the GPU, compared with a loop of `Tensor.cuda()`": (
            lambda: state.move(host, "cuda"),
            lambda: [value.cuda() for value in host],
        ),
        "`state.move` to the host, compared with a loop of `Tensor.cpu()`": (
            lambda: state.move(device, "cpu"),
            lambda: [value.cpu() for value in device],
        ),
    }
    for what, (ours, loop) in calls.items():
        assert torch.equal(torch.stack(ours()), torch.stack(loop()))
        seconds = interleaved({"ours": _finished(ours), "loop": _finished(loop)}, rounds)
        figures.append(
            Figure(
                f"{SMALL:,} tensors of 1 KiB",
                what,
                "us/tensor",
                per_node(seconds["ours"], SMALL),
                per_node(seconds["loop"], SMALL),
                ratio(seconds["loop"], seconds["ours"]),
                rounds,
                OVER_LOOP,
                sides="loop / fxpress",
            )
        )
    return figures


def _measure_load(size: int, rounds: int) -> list[Figure]:
    """Measure loading a cached file onto the GPU, compared with one copy and torch's load."""
    program = export(Large(size), (torch.ones(1),))
    pinned = torch.rand(size // 4).pin_memory()
    target = torch.empty_like(pinned, device="cuda")
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        path = Path(folder) / "model.pt2"
        archive.save(program, path)

        def load(**options: Any) -> ExportedProgram:
            return archive.load(path, map_location="cuda", **options)

        def theirs() -> ExportedProgram:
            return torch.export.load(path)

        for key, value in load().state_dict.items():
            assert value.device.type == "cuda"
            assert torch.equal(value.cpu(), program.state_dict[key])
        seconds = interleaved(
            {
                "ours": _finished(load),
                "mapped": _finished(lambda: load(mmap=True)),
                "one copy": _finished(lambda: target.copy_(pinned, non_blocking=True)),
                "torch": _finished(lambda: [v.cuda() for v in theirs().state_dict.values()]),
            },
            rounds,
        )
    name = f"{size / 2**30:g} GiB of weights"
    mapped = {**seconds, "ours": seconds["mapped"]}
    torchs = {**seconds, "one copy": seconds["torch"]}
    what = "`load` of a cached file to the GPU"
    return [
        _rates(name, what, size, seconds, LOAD_OF_ONE_COPY),
        _rates(name, f"{what}, with `mmap=True`", size, mapped, LOAD_OF_ONE_COPY),
        _rates(name, what, size, torchs, OVER_TORCH, "`torch.export.load` and `Tensor.cuda()`"),
    ]


def _measure_program(rounds: int) -> list[Figure]:
    """Measure a transformer on the GPU: forward passes, decompositions."""
    torch.manual_seed(0)
    eager = torch.nn.Sequential(*(graphs.Layer(graphs.WIDTH, graphs.HEADS) for _ in range(LAYERS)))
    eager = eager.eval().cuda()
    x = torch.randn(2, 8, graphs.WIDTH, device="cuda")
    program = export(copy.deepcopy(eager), (x,))
    name = f"transformer on the GPU, {LAYERS} layers"
    return [
        *_measure_forward(name, program, eager, x, 4 * rounds),
        *(measure_table(name, table, program, min(rounds, 3)) for table in TABLES),
    ]


def _measure_forward(
    name: str, program: ExportedProgram, eager: torch.nn.Module, x: torch.Tensor, rounds: int
) -> list[Figure]:
    unflattened = "the unflattened module"
    sides: dict[str, Callable[[torch.Tensor], Any]] = {
        "eager module": eager,
        unflattened: unflatten(program),
        "`module(engine=True)`": module(program, engine=True),
        "torch's unflattened module": torch.export.unflatten(program),
    }
    with torch.no_grad():
        expected = eager(x)
        for side in sides.values():
            torch.testing.assert_close(side(x), expected)
        runs = {what: _finished(functools.partial(side, x)) for what, side in sides.items()}
        seconds = interleaved(runs, rounds)
    operators = sum(node.op == "call_function" for node in program.graph.nodes)

    def figure(ours: str, other: str, goal: Goal | None) -> Figure:
        mine, theirs = (per_node(seconds[side], operators) for side in (ours, other))
        found = ratio(seconds[ours], seconds[other])
        what, over = f"forward of {ours}, without autograd", f"fxpress / {other}"
        return Figure(name, what, "us/op", mine, theirs, found, rounds, goal, sides=over)

    return [
        figure(unflattened, "eager module", NOT_SLOWER),
        figure("`module(engine=True)`", "eager module", NOT_SLOWER),
        figure(unflattened, "torch's unflattened module", None),
    ]

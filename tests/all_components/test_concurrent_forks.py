"""Forks while other threads load, save and run."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import fxpress
from fxpress import _native, archive, state
from fxpress.unflatten import unflatten
from tests.support.exported import export

NEVER = 2**31 - 1  # young objects: no collections

pytestmark = [
    pytest.mark.slow("separate processes"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
]


def in_child(work: Callable[[], object]) -> int:
    """The exit status of a forked child that does something and ends; 1 where it raises."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def hold(block: Any, held: threading.Event, done: threading.Event) -> None:
    with block:
        held.set()
        done.wait(60)


def test_pauses_of_other_threads_are_over_in_the_child() -> None:
    done = threading.Event()
    thresholds = gc.get_threshold()
    blocks = [_native.GcPause(), _native.RareCollections()]
    events = [(threading.Event(), done) for _ in blocks]
    threads = [
        threading.Thread(target=hold, args=(block, *each))
        for block, each in zip(blocks, events, strict=True)
    ]
    for thread, (began, _) in zip(threads, events, strict=True):
        thread.start()
        began.wait(60)
    assert gc.get_threshold()[0] == NEVER

    def check() -> None:
        assert _native.gc_pauses() == 0
        assert gc.get_threshold() == thresholds
        with _native.GcPause():
            assert gc.get_threshold() == (NEVER, *thresholds[1:])
        assert gc.get_threshold() == thresholds

    def check_own() -> None:
        assert gc.get_threshold()[0] == NEVER
        assert _native.gc_pauses() == 1
        own.__exit__(None, None, None)
        check()

    assert in_child(check) == 0
    with (own := _native.GcPause()):
        assert in_child(check_own) == 0
    done.set()
    for thread in threads:
        thread.join()

    assert gc.get_threshold() == thresholds


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.inner(x))


class Large(torch.nn.Module):
    """Its weights have more elements than torch fills or copies on one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.ones(600, 600))
        self.register_buffer("turned", self.weight.t().clone().t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight + self.turned


@pytest.mark.parametrize("read", ["load", "read", "load_into"])
def test_a_child_reads_weights_without_the_threads_of_its_parent(read: str, tmp_path: Path) -> None:
    """torch's kernels would wait forever for OpenMP's threads, which a child does not have."""
    program = export(Large(), (torch.ones(600, 600),))
    path = tmp_path / "model.pt2"
    archive.save(program, path, weights="safetensors")
    work: dict[str, Callable[[], object]] = {
        "load": lambda: archive.load(path),
        "read": lambda: state.read(path),
        "load_into": lambda: state.load_into(program, path),
    }

    def in_time() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not that of pytest-timeout
        signal.alarm(60)
        threads = torch.get_num_threads()
        work[read]()
        assert torch.get_num_threads() == threads

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(1 << 20).add_(1)  # starts OpenMP's threads
        assert in_child(in_time) == 0
    finally:
        torch.set_num_threads(threads)


class Loaded(Dataset):  # type: ignore[type-arg]
    """Each item: the line that a program prints after the worker has used it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        assert gc.isenabled()
        assert _native.gc_pauses() == 0
        assert not fxpress.is_installed() or fxpress._install._installation.leases
        program = archive.load(self.path)
        archive.save(program, self.path.with_name(f"{os.getpid()}.pt2"))
        return unflatten(program)(torch.full((2, 8), float(index))).detach()


@pytest.mark.deep("80 s where torch is a CUDA build, whose processes take long to fork")
def test_workers_that_fork_while_the_parent_loads_saves_and_runs(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    archive.save(export(Model(), (torch.ones(2, 8),)), path)
    module = unflatten(archive.load(path))
    assert not fxpress.is_installed()  # imported now: a child of an importing thread waits for ever
    expected = [module(torch.full((2, 8), float(i))).detach() for i in range(4)]
    over = threading.Event()
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            while not over.is_set():
                with fxpress.installed():
                    program = archive.load(path)
                    unflatten(program)(torch.ones(2, 8))
                    archive.save(program, tmp_path / name)
        except BaseException as e:
            failed.append(e)

    threads = [threading.Thread(target=work, args=(f"{i}.pt2",)) for i in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            loader = DataLoader(
                Loaded(path),
                batch_size=None,
                num_workers=2,
                multiprocessing_context="fork",
                timeout=120,
            )
            for got, wanted in zip(loader, expected, strict=True):
                torch.testing.assert_close(got, wanted)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not failed


def test_a_child_of_a_callback_of_a_write_does_not_wait_for_threads() -> None:
    """The checksum of a large record is computed by a thread that the child does not have."""
    status: list[int] = []

    class Forking:
        def write(self, data: Any) -> int:
            if len(data) > 1 << 16 and not status:
                child = os.fork()
                if child == 0:
                    status.append(-1)  # goes on, and fails
                else:
                    status.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            return len(data)

    writer = _native.ArchiveWriter(Forking().write, "root")
    try:
        writer.add("large", bytes(1 << 25))
    except RuntimeError as e:
        os._exit(7 if status == [-1] and "forked" in str(e) else 8)
    finally:
        if status == [-1]:
            os._exit(9)
    assert status == [7]


FORKS_WHILE_PAUSED = """
import gc, importlib, os, sys, threading

importlib.import_module(sys.argv[1])
from fxpress import _native

thresholds = gc.get_threshold()
paused, done = threading.Event(), threading.Event()

def pause():
    with _native.GcPause():
        paused.set()
        done.wait(60)

thread = threading.Thread(target=pause)
thread.start()
paused.wait(60)
assert gc.get_threshold() != thresholds
child = os.fork()
if child == 0:
    os._exit(0 if gc.get_threshold() == thresholds else 3)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
done.set()
thread.join()
sys.exit(status)
"""


@pytest.mark.parametrize("component", ["archive", "serialize", "split_module", "state", "_native"])
def test_a_process_that_has_imported_one_component_alone(component: str) -> None:
    child = [sys.executable, "-c", FORKS_WHILE_PAUSED, f"fxpress.{component}"]
    assert subprocess.run(child, timeout=120, check=False).returncode == 0

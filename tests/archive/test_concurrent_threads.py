"""Saving and loading in many threads at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, export

from fxpress import _native, archive, state
from tests.support.archived import records_of


class Model(torch.nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3 << 20,), float(number)))  # 12 MiB
        self.small = torch.nn.ParameterList(torch.full((5,), float(number)) for _ in range(50))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight[0] + self.small[3].sum() + x.shape[0]


THREADS = 8


def test_eight_threads_save_and_load_at_once(tmp_path: Path) -> None:
    shapes = ({0: Dim("n", min=2)},)
    programs = [export(Model(i), (torch.ones(4),), dynamic_shapes=shapes) for i in range(THREADS)]
    barrier = threading.Barrier(THREADS)

    def work(number: int) -> None:
        path = tmp_path / f"{number}.pt2"
        barrier.wait()
        for turn in range(4):
            archive.save(programs[number], path)
            loaded = archive.load(path, mmap=turn % 2 == 0)
            state.load_into(loaded, state.clone(dict(loaded.state_dict)))
            x = torch.ones(3)
            assert torch.equal(loaded.module()(x), programs[number].module()(x))
            archive.verify(path)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{i}.pt2" for i in range(THREADS)]
    for number, program in enumerate(programs):
        path = tmp_path / f"{number}.pt2"
        alone = tmp_path / "alone" / path.name
        alone.parent.mkdir(exist_ok=True)
        archive.save(program, alone)
        assert records_of(path.read_bytes()) == records_of(alone.read_bytes())


@pytest.mark.parametrize("writes", [True, False], ids=["in place", "new data"])
def test_files_that_are_saved_while_weights_change_are_valid(tmp_path: Path, writes: bool) -> None:
    program = export(Model(0), (torch.ones(4),))
    weight, done = program.state_dict["weight"], threading.Event()

    def train() -> None:
        while not done.is_set():
            if writes:
                with torch.no_grad():
                    weight.add_(1)
            else:
                weight.data = torch.ones(3 << 20)

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(8):
            for weights in ("inline", "safetensors"):
                archive.save(program, tmp_path / "model.pt2", weights=weights)
                archive.load(tmp_path / "model.pt2")
            state.write({"a": weight}, tmp_path / "state.pt2")
            archive.verify(tmp_path / "state.pt2")
    finally:
        done.set()
        thread.join()


def test_threads_that_save_to_one_file_leave_one_of_theirs(tmp_path: Path) -> None:
    programs = [export(Model(i), (torch.ones(4),)) for i in range(4)]
    path = tmp_path / "model.pt2"

    def work(number: int) -> None:
        for _ in range(5):
            archive.save(programs[number], path)
            archive.verify(path)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    weight = archive.load(path).state_dict["weight"]
    assert weight[0] in (0, 1, 2, 3)
    assert (weight == weight[0]).all()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_one_reader_for_many_threads(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    archive.save(export(Model(3), (torch.ones(4),)), path)
    with archive.PT2ArchiveReader(path) as reader, ThreadPoolExecutor(THREADS) as pool:
        names = reader.get_file_names()
        expected = {name: reader.read_bytes(name) for name in names}
        for _ in range(3):
            assert dict(zip(names, pool.map(reader.read_bytes, names), strict=True)) == expected


def test_one_writer_is_for_one_thread() -> None:
    inside, go_on = threading.Event(), threading.Event()

    def write(data: Any) -> None:
        inside.set()
        assert go_on.wait(10)

    writer = _native.ArchiveWriter(write, "root")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(writer.add, "large", bytes(1 << 20))
        assert inside.wait(10)
        with pytest.raises(RuntimeError, match="another thread"):
            writer.add("b", b"x")
        with pytest.raises(RuntimeError, match="another thread"):
            writer.has_record("large")
        go_on.set()
        first.result()
    writer.add("b", b"x")
    writer.finish()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_is_forked_between_pieces_ends() -> None:
    """The thread that copies the pieces is not in the child, and nothing waits for it there."""

    class File:
        child = -1

        def write(self, data: Any) -> int:
            if len(data) > 1 << 19 and self.child < 0:
                time.sleep(0.05)  # the thread has copied what it may, and waits
                self.child = os.fork()
            return len(data)

    file, status = File(), 1
    try:
        state.write({"a": torch.ones(5 << 20)}, file)
    except RuntimeError as error:
        status = 0 if "forked" in str(error) else 2
    if file.child == 0:
        os._exit(status)
    end = time.monotonic() + 20
    while (done := os.waitpid(file.child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    if done == (0, 0):
        os.kill(file.child, signal.SIGKILL)
        os.waitpid(file.child, 0)
    assert done == (file.child, 0)

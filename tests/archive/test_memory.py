"""References, leaks and memory of archives and copies, where they succeed and where they fail."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch.export import export

from fxpress import archive, state
from tests.support.archived import saved_by_us
from tests.support.memory import check_no_blocks_leak, collect_all

PAGE = 1 << 20


class Model(torch.nn.Module):
    def __init__(self, size: int = 1000) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size))
        self.register_buffer("part", self.weight.detach()[1:3])
        self.constant = torch.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.sum() + self.part.sum() + self.constant.sum()


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return export(Model(), (torch.ones(1),))


def damaged(data: bytes) -> bytes:
    at = data.index(torch.ones(1000).numpy().tobytes())
    return data[:at] + b"\x01" + data[at + 1 :]


def actions(program: Any, folder: Path) -> dict[str, Any]:
    data = saved_by_us(program)
    path = folder / "model.pt2"
    archive.save(program, path)
    bad = damaged(data)
    structure = archive.load(path, load_weights=False)
    tensors = [torch.nn.Parameter(torch.ones(5)), torch.ones(4).t(), torch.ones(3).to_sparse()]

    def failing(call: Any, *args: Any) -> Any:
        def action() -> None:
            with contextlib.suppress(archive.SerializeError, TypeError, OSError):
                call(*args)
                raise AssertionError("it should fail")

        return action

    return {
        "save": lambda: archive.save(program, path),
        "save, buffer": lambda: archive.save(program, io.BytesIO()),
        "save, fails": failing(archive.save, program, folder / "none" / "model.pt2"),
        "load": lambda: archive.load(path),
        "load, buffer": lambda: archive.load(memoryview(data)),
        "load, mapped": lambda: archive.load(path, mmap=True),
        "load, fails": failing(archive.load, bad),
        "load, no archive": failing(archive.load, b"x"),
        "verify": lambda: archive.verify(path),
        "verify, fails": failing(archive.verify, bad),
        "load_into": lambda: state.load_into(structure, path),
        "load_into, fails": failing(state.load_into, structure, {}),
        "clone": lambda: state.clone(tensors),
        "clone, fails": failing(state.clone, [*tensors, 1]),
        "move": lambda: state.move(tensors[:2], "meta"),
        "read": lambda: state.read(path),
    }


NAMES = [
    *("save", "save, buffer", "save, fails", "load", "load, buffer", "load, mapped"),
    *("load, fails", "load, no archive", "verify", "verify, fails", "load_into"),
    *("load_into, fails", "clone", "clone, fails", "move", "read"),
]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left_behind(program: Any, tmp_path: Path, name: str) -> None:
    action = actions(program, tmp_path)[name]
    action()
    descriptors = len(os.listdir("/proc/self/fd"))
    check_no_blocks_leak(action)
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.deep("500 loads")
def test_memory_does_not_grow_over_500_loads(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    archive.save(export(Model(1 << 18), (torch.ones(1),)), path)  # 1 MiB
    process = psutil.Process()

    def load(times: int) -> int:
        for i in range(times):
            archive.load(path, mmap=i % 2 == 0).module()(torch.ones(1))
        collect_all()
        return int(process.memory_info().rss)

    load(50)
    before = load(50)
    assert load(500) - before < 32 * PAGE


def test_saving_needs_no_copy_of_the_weights(tmp_path: Path) -> None:
    program = export(Model(1 << 26), (torch.ones(1),))  # 256 MiB
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = psutil.Process().memory_info().rss
    archive.save(program, tmp_path / "model.pt2")
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))
    assert peak - before < 64 * PAGE


def test_copies_keep_their_memory_and_no_more() -> None:
    small = [torch.full((100,), float(i)) for i in range(2000)]
    kept = state.clone(small)[7::100]
    gc.collect()
    noise = [torch.zeros(100) for _ in range(5000)]  # would take memory that was freed
    for i, copied in enumerate(kept):
        assert (copied == 7 + 100 * i).all()
    assert noise
    kept[0].resize_(10_000).fill_(1)
    assert kept[0].untyped_storage().nbytes() == 40_000
    before = [sys.getrefcount(kept[i]) for i in range(len(kept))]
    again = state.clone(kept)
    after = [sys.getrefcount(kept[i]) for i in range(len(kept))]
    assert after == before
    assert torch.equal(again[1], kept[1])

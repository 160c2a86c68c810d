"""Progress bars and interrupts of long operations."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import export

from fxpress import archive, state
from fxpress._base.observing import progress
from tests.support.interrupts import answer_time

MIB = 1 << 20


class Model(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(size, dtype=torch.uint8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight[0]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """The stream that is a terminal from now on; pytest replaces the stream after fixtures."""
    pytest.importorskip("tqdm")
    made = Terminal()
    monkeypatch.setattr(sys, "stderr", made)
    return made


def test_bars_of_what_takes_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stream = terminal(monkeypatch)
    path = tmp_path / "model.pt2"
    program = export(Model(50 * MIB), (torch.ones(1),))
    archive.save(program, path)
    archive.load(path)
    assert stream.getvalue() == ""  # it took less than two seconds
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    archive.save(program, path)
    archive.load(path)
    archive.verify(path)
    shown = stream.getvalue()
    for action in ("saving", "loading", "checking"):
        last = shown.split(f"{action}: ")[-1].partition("\n")[0]
        assert "52.4M" in last, action


def test_no_bar_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    archive.save(export(Model(MIB), (torch.ones(1),)), io.BytesIO())
    assert capsys.readouterr().err == ""


def test_no_bar_without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = terminal(monkeypatch)
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(progress, "_bar_class", progress._bar_class.__wrapped__)
    buffer = io.BytesIO()
    archive.save(export(Model(MIB), (torch.ones(1),)), buffer)
    archive.load(buffer)
    assert stream.getvalue() == ""


KILLED = """
import io, os, signal, sys
import torch
from tqdm import tqdm
from fxpress import archive
from fxpress._base.observing import progress

class Terminal(io.StringIO):
    def isatty(self):
        return True

def end_of_a_child(lock):
    child = os.fork()
    if child == 0:
        lock.acquire(False)  # a child before may have left it locked
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)

program = torch.export.export(torch.nn.Linear(9, 9), (torch.ones(9),))
for stream in (sys.stderr, Terminal()):
    for bar in (tqdm, progress._bar_class()):
        sys.stderr = stream
        end_of_a_child(bar.get_lock())
        archive.save(program, io.BytesIO())
"""


@pytest.mark.slow("a process that is killed")
def test_a_child_that_is_killed_in_a_bar_stops_nobody() -> None:
    pytest.importorskip("tqdm")
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.deep("files of 300 MiB, many times")
def test_interrupts_are_answered(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    program = export(Model(300 * MIB), (torch.ones(1),))
    archive.save(program, path)

    def repeated(call: Any) -> Any:
        def work() -> None:
            while True:
                call()

        return work

    for call in (
        lambda: archive.save(program, path),
        lambda: archive.load(path),
        lambda: archive.verify(path),
        lambda: state.clone(program.state_dict),
    ):
        assert answer_time(repeated(call), 0.1) < 0.5
    archive.verify(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.deep("a file of 5 GiB")
def test_files_over_4_gib_and_tensors_over_2_31_elements(tmp_path: Path) -> None:
    import shutil

    size = (5 << 30) + 3
    if shutil.disk_usage(tmp_path).free < 2 * size:
        pytest.skip("no space on the disk")
    path = tmp_path / "model.pt2"
    program = export(Model(size), (torch.ones(1),))
    weight = program.state_dict["weight"]
    weight[-1], weight[3 << 30] = 7, 9
    archive.save(program, path)
    loaded = archive.load(path, mmap=True)
    read = loaded.state_dict["weight"]
    assert read.shape == (size,)
    assert (read[-1], read[3 << 30], read[-2]) == (7, 9, 0)
    assert loaded.module()(torch.ones(1)) == 1
    archive.verify(path)
    # torch finds the records where they are.
    reader = torch._C.PyTorchFileReader(str(path))
    assert reader.get_record_size("data/weights/weight_0") == size
    assert reader.get_record("archive_format") == b"pt2"
    with archive.PT2ArchiveReader(path) as ours:
        offset = ours.record("data/weights/weight_0").offset
    assert reader.get_record_offset("data/weights/weight_0") == offset


def test_bytes_that_are_written_are_reported() -> None:
    counts: list[int] = []
    file = io.BytesIO()
    writer = archive.PT2ArchiveWriter(file)
    with writer.reporting_to(counts.append):
        writer.write_bytes("large", bytes(3 * MIB))
        writer.complete()
    assert 3 * MIB <= sum(counts) <= len(file.getvalue())

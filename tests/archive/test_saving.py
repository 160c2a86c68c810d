"""`save` always leaves a complete file; where it writes weights."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import export

from fxpress import archive, state
from fxpress._files.archive.files import AtomicFile
from fxpress._files.archive.replacing import commit_files
from fxpress._files.format import names
from tests.support.archived import records_of, sharing
from tests.support.records import read_records, write_records


class Model(torch.nn.Module):
    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(float(size)))
        self.register_buffer("part", self.weight.detach()[1:3])
        self.register_buffer("turned", torch.arange(6.0).reshape(2, 3).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.weight.sum() + self.part.sum() + self.turned.sum()


X = torch.ones(2)


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return export(Model(), (X,))


@pytest.fixture(scope="module")
def large() -> torch.export.ExportedProgram:
    return export(Model(1 << 22), (X,))  # 16 MiB


def assert_nothing_beside(path: Path) -> None:
    assert os.listdir(path.parent) == [path.name]


def weights_beside(path: Path) -> Path:
    """The file of weights of a program, of which there is one."""
    (found,) = path.parent.glob(f"{path.stem}.*.safetensors")
    return found


# What saves is killed: children of this process, which has what they need in memory. It says how
# often there was a file beside the target at that moment.
KILLS = """
import os, random, signal, sys, time
sys.path.insert(0, sys.argv[2])
import torch
from fxpress import archive
path, kills = sys.argv[1], int(sys.argv[4])
program = torch.export.load(sys.argv[3])
started = time.perf_counter()
archive.save(program, path)
duration = time.perf_counter() - started
chance, beside = random.Random(0), 0
for _ in range(kills):
    child = os.fork()
    if child == 0:
        while True:
            archive.save(program, path)
    time.sleep(chance.random() * 3 * duration)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    archive.verify(path)
    left = os.listdir(os.path.dirname(path))
    assert len(left) <= 2, left
    beside += len(left) == 2
print(beside)
"""


@pytest.mark.deep("100 kills")
def test_kills_at_any_moment_leave_a_whole_file(large: Any, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "model.pt2"
    path.parent.mkdir()
    source = tmp_path / "source.pt2"
    archive.save(large, source)
    kills = 100
    package = Path(archive.__file__).parents[1]
    command = [sys.executable, "-c", KILLS, path, package, source, str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > kills // 10, "the kills came at other moments"
    archive.save(large, path)
    assert_nothing_beside(path)


def test_files_of_killed_writers_are_removed_and_those_of_others_are_not(
    program: Any, tmp_path: Path
) -> None:
    path = tmp_path / "model.pt2"
    other = AtomicFile(path)
    (name,) = os.listdir(tmp_path)
    abandoned = tmp_path / f"{name[:-8]}01234567"
    abandoned.write_bytes(b"left behind")
    archive.save(program, path)
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, name])
    os.write(other.descriptor, b"whole")
    commit_files(other)
    assert path.read_bytes() == b"whole"
    assert_nothing_beside(path)


def test_errors_leave_the_old_file(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"old")
    before = path.stat().st_mtime_ns

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    for method in ("write_bytes", "write_memory", "finish", "close"):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(archive.PT2ArchiveWriter, method, fail)
            archive.save(program, path)
    bad = export(Model(), (X,))
    bad.state_dict["weight"] = 1
    with pytest.raises(Exception, match="weight"):
        archive.save(bad, path)
    assert path.read_bytes() == b"old"
    assert path.stat().st_mtime_ns == before
    assert_nothing_beside(path)


def test_modes_and_links_stay(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "real.pt2"
    path.write_bytes(b"")
    path.chmod(0o640)
    link = tmp_path / "link.pt2"
    link.symlink_to("real.pt2")
    archive.save(program, link)
    assert link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    archive.verify(path)
    mask = os.umask(0o027)
    try:
        archive.save(program, tmp_path / "new.pt2")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new.pt2").stat().st_mode) == 0o640


@contextlib.contextmanager
def small_disk(tmp_path: Path, size: str) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    libc = ctypes.CDLL(None)  # the program mount need not be installed
    place = os.fsencode(folder)
    if libc.mount(b"tmpfs", place, b"tmpfs", ctypes.c_ulong(0), f"size={size}".encode()) != 0:
        pytest.skip("no right to mount a small disk")
    try:
        yield folder
    finally:
        assert libc.umount(place) == 0


def test_a_full_disk_is_one_clear_error(program: Any, large: Any, tmp_path: Path) -> None:
    with small_disk(tmp_path, "4m") as folder:
        path = folder / "model.pt2"
        archive.save(program, path)
        old = path.read_bytes()
        with pytest.raises(OSError, match="No space left") as caught:
            archive.save(large, path)
        assert caught.value.errno == errno.ENOSPC
        assert caught.value.filename == str(path)
        assert path.read_bytes() == old
        assert_nothing_beside(path)


def test_full_devices_and_closed_pipes(program: Any, large: Any) -> None:
    with pytest.raises(OSError, match="No space left"):
        archive.save(large, "/dev/full")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as pipe, pytest.raises(BrokenPipeError):
        archive.save(program, pipe)


def test_folders_and_files_that_cannot_be_written(program: Any, tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        archive.save(program, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"none/model\.pt2"):
        archive.save(program, tmp_path / "none" / "model.pt2")
    with pytest.raises(RuntimeError, match="invalid file name"):
        archive.save(program, tmp_path / ".pt2")


class Partial(io.RawIOBase):
    """A file whose `write` accepts only a part of its argument."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return len(data) // 2


def test_objects_that_take_a_part(program: Any) -> None:
    with pytest.raises(OSError, match=r"expected write\(\) to accept \d+ bytes, got \d+"):
        archive.save(program, Partial())


def test_weights_in_a_safetensors_file(program: Any, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    path = tmp_path / "model.pt2"
    archive.save(program, path, weights="safetensors")
    beside = weights_beside(path)
    stored = safetensors.load_file(beside)
    for name, value in program.state_dict.items():
        assert torch.equal(stored[name], value)
    assert "model/data/weights/weight_0" not in records_of(path.read_bytes())
    loaded = archive.load(path)
    assert sharing(loaded.state_dict) == sharing(program.state_dict)
    assert loaded.state_dict["turned"].stride() == program.state_dict["turned"].stride()
    assert torch.equal(loaded.module()(X), program.module()(X))
    with pytest.raises(archive.ArchiveError, match="load it from a path"):
        archive.load(io.BytesIO(path.read_bytes()))
    with pytest.raises(ValueError, match="f must be a path"):
        archive.save(program, io.BytesIO(), weights="safetensors")
    archive.save(program, tmp_path / "other.pt2", weights="safetensors")
    weights_beside(tmp_path / "other.pt2").rename(beside)
    with pytest.raises(archive.ArchiveError, match="another save"):
        archive.load(path)
    beside.write_bytes(b"x")
    with pytest.raises(archive.ArchiveError, match="safetensors is damaged"):
        archive.load(path)
    beside.unlink()
    with pytest.raises(FileNotFoundError):
        archive.load(path)


def test_weights_nowhere(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    archive.save(program, path, weights="none")
    with pytest.raises(archive.ArchiveError, match="saved without its weights"):
        archive.load(path)
    loaded = archive.load(path, load_weights=False)
    assert {value.device.type for value in loaded.state_dict.values()} == {"meta"}
    with pytest.raises(ValueError, match="expected weights to be one of"):
        archive.save(program, path, weights="elsewhere")  # type: ignore[arg-type]


def test_a_safetensors_file_stays_when_the_archive_does(program: Any, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    path = tmp_path / "model.pt2"
    mask = os.umask(0o027)
    try:
        archive.save(program, path, weights="safetensors")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(weights_beside(path).stat().st_mode) == 0o640
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(AssertionError, match="Expected string"):
        archive.save(program, path, weights="safetensors", extra_files={"a": 1})
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_safetensors_file_stays_while_another_archive_names_it(
    program: Any, tmp_path: Path
) -> None:
    pytest.importorskip("safetensors")
    path, copy = tmp_path / "model.pt2", tmp_path / "copy.pt2"
    archive.save(program, path, weights="safetensors")
    copy.write_bytes(path.read_bytes())
    archive.save(program, path, weights="safetensors")
    for each in (path, copy):
        assert torch.equal(archive.load(each).module()(X), program.module()(X))
    archive.save(program, copy, weights="none")
    assert weights_beside(path).is_file()


@contextlib.contextmanager
def within(seconds: int) -> Iterator[None]:
    """A block that fails if it needs longer, for example because it waits for a pipe."""

    def fail(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _prepare(kind: str, path: Path) -> None:
    """Create something at a path that cannot be read as an earlier save."""
    if kind == "folder":
        (path / "inside").mkdir(parents=True)
    elif kind == "link":
        path.symlink_to("/etc/passwd")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "header":  # of a safetensors file, with levels above the limit
        text = b'{"a":' + b"[" * 600 + b"]" * 600 + b"}"
        path.write_bytes(len(text).to_bytes(8, "little") + text)
    elif kind == "archive":  # that names weights in a record which is too large
        record = f"archive/{names.weights_file_record(names.MODEL)}"
        path.write_bytes(write_records({record: bytes(1 << 27)}, zipfile.ZIP_DEFLATED))
    else:
        path.write_bytes(b"PK\x03\x04" + kind.encode())


@pytest.mark.parametrize(
    "kind", ["folder", "link", "loop", "device", "pipe", "header", "archive", "damage"]
)
@pytest.mark.parametrize("name", ["weights", "neighbor", "temporary", "other.safetensors"])
def test_a_folder_with_prepared_files(name: str, kind: str, program: Any, tmp_path: Path) -> None:
    """A save replaces the program, or it fails and the old one is there."""
    pytest.importorskip("safetensors")
    path = tmp_path / "model.pt2"
    archive.save(program, path, weights="safetensors")
    place = tmp_path / name
    if name == "weights":  # of the program that is replaced
        place = weights_beside(path)
        place.unlink()
    elif name == "temporary":
        place = tmp_path / f".{path.name}.fxpress-tmp-01234567"
    _prepare(kind, place)
    with within(60):
        for options in ({}, {"replace": "in_place"}, {"weights": "safetensors"}):
            archive.save(program, path, **options)
            assert torch.equal(archive.load(path).module()(X), program.module()(X))


def test_weights_stay_that_the_new_program_names_too(program: Any, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    path = tmp_path / "model.pt2"
    archive.save(program, path, weights="safetensors")
    records = read_records(path.read_bytes())
    for replace in ("whole", "in_place"):
        with archive.PT2ArchiveWriter(path, replace=replace) as writer:
            for name, content in records.items():
                if not name.endswith((".data/serialization_id", "/byteorder", "/version")):
                    writer.write_bytes(name.partition("/")[2], content)
        assert torch.equal(archive.load(path).module()(X), program.module()(X))


def test_a_safetensors_file_beside_the_file_that_a_link_leads_to(
    program: Any, tmp_path: Path
) -> None:
    pytest.importorskip("safetensors")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "model.pt2").touch()
    link = tmp_path / "link.pt2"
    link.symlink_to(tmp_path / "real" / "model.pt2")
    archive.save(program, link, weights="safetensors")
    assert len(os.listdir(tmp_path / "real")) == 2
    assert weights_beside(tmp_path / "real" / "model.pt2").is_file()
    assert torch.equal(archive.load(link).module()(X), program.module()(X))


def test_tied_and_expanded_weights_in_a_safetensors_file(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(3, 3, bias=False)
            self.b = torch.nn.Linear(3, 3, bias=False)
            self.b.weight = torch.nn.Parameter(self.a.weight.detach())
            self.register_buffer("expanded", torch.ones(1).expand(8))
            self.register_buffer("sparse_view", torch.full((100, 8), 7.0)[:, :1])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x)) + self.expanded.sum() + self.sparse_view.sum()

    tied = export(Tied(), (torch.ones(3),))
    path = tmp_path / "model.pt2"
    archive.save(tied, path, weights="safetensors")
    loaded = archive.load(path)
    assert sharing(loaded.state_dict) == sharing(tied.state_dict)
    assert loaded.state_dict["expanded"].stride() == (0,)
    for name, value in tied.state_dict.items():
        assert torch.equal(loaded.state_dict[name], value)
    hidden = loaded.state_dict["sparse_view"].as_strided((99, 7), (8, 1), 1)
    assert not hidden.any()  # nothing of what the memory held before
    state.load_into(loaded, dict(tied.state_dict))


def test_nothing_is_written_after_an_error(tmp_path: Path) -> None:
    writer = archive.PT2ArchiveWriter("/dev/full")
    writer.write_bytes("large", bytes(1 << 17))
    with pytest.raises(OSError, match="No space left"):
        writer.close()
    with open(tmp_path / "victim", "wb") as victim:  # gets the number of the closed descriptor
        for call in (writer.close, writer.complete, lambda: writer.write_bytes("a", b"")):
            with pytest.raises(archive.ArchiveError, match="abandoned"):
                call()
        with writer:
            pass
        assert victim.tell() == 0
    assert (tmp_path / "victim").read_bytes() == b""


class Failing:
    """A file whose first `write` fails; it keeps the arguments."""

    def __init__(self) -> None:
        self.kept: list[memoryview] = []

    def write(self, data: memoryview) -> int:
        self.kept.append(data)
        if len(self.kept) == 1:
            raise OSError(errno.EIO, "once")
        return len(data)


def test_objects_that_fail_once() -> None:
    target = Failing()
    with pytest.raises(OSError, match="once"), archive.PT2ArchiveWriter(target) as writer:
        writer.write_bytes("large", bytes(1 << 20))
    assert type(target.kept[0]) is bytes  # no view of memory that is gone
    assert len(target.kept) == 1


def test_errors_within_a_block_are_not_hidden(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"1"
        raise KeyError("mine")

    path = tmp_path / "model.pt2"
    with pytest.raises(KeyError, match="mine"), archive.PT2ArchiveWriter(path) as writer:
        writer.write_stream("a", 2, pieces())
    assert os.listdir(tmp_path) == []


def test_a_writer_that_is_dropped_leaves_nothing(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    writer = archive.PT2ArchiveWriter(tmp_path / "model.pt2")
    writer.write_bytes("a", b"1")
    del writer
    assert os.listdir(tmp_path) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_names_that_are_not_printable(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "\u3000.pt2"
    archive.save(program, path, weights="safetensors")
    assert archive.load(path).state_dict.keys() == program.state_dict.keys()


def test_long_names(program: Any, tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250 + ".pt2")
    archive.save(program, path)
    archive.verify(path)
    assert_nothing_beside(path)


@pytest.mark.parametrize("name", ["../a", "a\\b", "./x", "dir/", ""])
def test_names_that_could_not_be_read_again(program: Any, name: str) -> None:
    with pytest.raises(archive.ArchiveError, match="cannot be the name"):
        archive.save(program, io.BytesIO(), extra_files={name: "x"})


class Closing(io.BytesIO):
    """Takes records, and not the end of an archive."""

    is_full = False

    def write(self, data: Any) -> int:
        if self.is_full:
            raise OSError("no space")
        return super().write(data)


def test_an_archive_that_cannot_be_completed() -> None:
    file = Closing()
    with pytest.raises(OSError, match="no space"), archive.PT2ArchiveWriter(file) as writer:
        writer.write_bytes("a", b"x")
        file.is_full = True

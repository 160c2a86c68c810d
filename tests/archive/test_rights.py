"""Permissions of the files that `save` writes, of their folders and links, and of readers."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import resource
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import export

import fxpress
from fxpress import archive, state
from fxpress._files.archive import files, folders
from fxpress._tools.cli import app
from tests.support.archived import OneWeight


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return export(OneWeight(), (torch.ones(3),))


@pytest.fixture(scope="module")
def old(program: Any, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Another archive."""
    path = tmp_path_factory.mktemp("old") / "model.pt2"
    archive.save(program, path, extra_files={"which": "old"})
    return path.read_bytes()


@contextlib.contextmanager
def mask(bits: int) -> Iterator[None]:
    before = os.umask(bits)
    try:
        yield
    finally:
        os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("bits", [0o000, 0o022, 0o027, 0o077])
def test_a_new_file_has_the_mode_that_open_gives(program: Any, tmp_path: Path, bits: int) -> None:
    with mask(bits):
        open(tmp_path / "opened", "wb").close()
        archive.save(program, tmp_path / "new.pt2")
        archive.save(program, tmp_path / "pair.pt2", weights="safetensors")
        archive.save(program, tmp_path / "in_place.pt2", replace="in_place")
    assert {mode_of(path) for path in tmp_path.iterdir()} == {0o666 & ~bits}


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755, 0o4755, 0o2775, 0o1777, 0o7777])
def test_a_file_keeps_the_rights_of_the_one_it_replaces(
    program: Any, tmp_path: Path, mode: int
) -> None:
    path = tmp_path / "model.pt2"
    path.touch()
    path.chmod(mode)
    with mask(0o077):
        archive.save(program, path, weights="safetensors")
    assert {mode_of(each) for each in tmp_path.iterdir()} == {mode & 0o777}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_owner_and_group_stay(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.touch()
    os.chown(path, 1234, 4321)
    archive.save(program, path)
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)


def test_a_group_that_cannot_be_kept_gets_what_everybody_gets(
    program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, "no")

    path = tmp_path / "model.pt2"
    path.touch()
    path.chmod(0o664)
    monkeypatch.setattr(os, "fchown", refused)
    real = os.fstat

    def of_another(descriptor: int) -> Any:
        found = list(real(descriptor))
        found[5] += 1
        return os.stat_result(found)

    with monkeypatch.context() as patch:
        patch.setattr(files.os, "fstat", of_another)
        patch.setattr(files.os.path, "samestat", lambda *_: True)
        archive.save(program, path)
    assert mode_of(path) == 0o644


def test_access_control_lists_stay(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.touch()
    # Tag, permissions and number of each entry: owner, user 1234, group, mask, others.
    rights = ((1, 6, -1), (2, 6, 1234), (4, 4, -1), (16, 6, -1), (32, 0, -1))
    entries = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *each) for each in rights)
    try:
        os.setxattr(path, "system.posix_acl_access", entries)
    except OSError:
        pytest.skip("a file system without access control lists")
    before = os.getxattr(path, "system.posix_acl_access")
    archive.save(program, path)
    assert os.getxattr(path, "system.posix_acl_access") == before


def test_no_right_to_read_while_it_is_written(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.touch()
    path.chmod(0o600)
    with mask(0), archive.PT2ArchiveWriter(path):
        assert {mode_of(each) for each in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_any_kind_of_path(program: Any, tmp_path: Path, kind: Any) -> None:
    class Named:
        def __init__(self, path: Any) -> None:
            self.path = path

        def __fspath__(self) -> Any:
            return self.path

    name = os.fsdecode(os.path.join(os.fsencode(tmp_path), b"caf\xe9 \xff.pt2"))
    plain = kind(name)
    for target in (plain, Named(os.fspath(plain))):
        archive.save(program, target)
        assert os.listdir(tmp_path) == [os.path.basename(name)]
        archive.verify(name)
        os.unlink(name)
    with pytest.raises(ValueError, match="null"):
        archive.save(program, "a\0b.pt2")
    with pytest.raises(TypeError):
        archive.save(program, Named(3))


def test_links(program: Any, old: bytes, tmp_path: Path) -> None:
    real, hard, link = (tmp_path / name for name in ("real.pt2", "hard.pt2", "link.pt2"))
    real.write_bytes(old)
    hard.hardlink_to(real)
    link.symlink_to("real.pt2")
    archive.save(program, link)
    assert hard.read_bytes() == old
    assert link.is_symlink()
    archive.save(program, hard, replace="in_place")
    (tmp_path / "dangling.pt2").symlink_to("made.pt2")
    archive.save(program, tmp_path / "dangling.pt2")
    archive.verify(tmp_path / "made.pt2")
    (tmp_path / "loop.pt2").symlink_to("loop.pt2")
    with pytest.raises(OSError, match="symbolic links"):
        archive.save(program, tmp_path / "loop.pt2")


def test_pipes_and_devices(program: Any, old: bytes, tmp_path: Path) -> None:
    archive.save(program, "/dev/null")
    pipe = tmp_path / "pipe.pt2"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    archive.save(program, pipe)
    reader.join()
    archive.verify(io.BytesIO(found[0]))
    for path in ("/dev/null", pipe):
        with pytest.raises(ValueError, match="a regular file"):
            thread = threading.Thread(target=lambda path=path: Path(path).open("rb").close())
            thread.start()
            try:
                archive.save(program, path, weights="safetensors")
            finally:
                thread.join()
    assert os.listdir(tmp_path) == ["pipe.pt2"]


AS_NOBODY = """
import os, sys
sys.path.insert(0, sys.argv[2])
import fxpress
from fxpress import archive
program = archive.load(sys.argv[3])
os.setgid(65534), os.setuid(65534)
os.chdir(sys.argv[1])
for name, replace in (("locked/model.pt2", "whole"), ("readonly.pt2", "whole"),
                      ("readonly.pt2", "in_place"), ("none/model.pt2", "whole")):
    try:
        archive.save(program, name, replace=replace)
    except OSError as e:
        print(type(e).__name__, e.filename)
archive.save(program, "locked/model.pt2", replace="in_place")
archive.verify("locked/model.pt2")
"""


@pytest.mark.slow("separate processes")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes somebody else")
def test_folders_and_files_without_permission(program: Any, old: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "source.pt2").write_bytes(old)
        (folder / "locked").mkdir()
        (folder / "locked" / "model.pt2").write_bytes(old)
        (folder / "locked" / "model.pt2").chmod(0o666)
        (folder / "readonly.pt2").write_bytes(old)
        package = Path(fxpress.__file__).parents[1]
        command = ["-c", AS_NOBODY, folder, package, folder / "source.pt2"]
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "PermissionError locked/model.pt2",
            "PermissionError readonly.pt2",
            "PermissionError readonly.pt2",
            "FileNotFoundError none/model.pt2",
        ]
        assert (folder / "readonly.pt2").read_bytes() == old
        assert os.listdir(folder / "locked") == ["model.pt2"]


def test_an_open_handle_sees_the_old_file(program: Any, old: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".pt2") as file:
        file.write(old)
        file.flush()
        archive.save(program, file.name)
        file.seek(0)
        assert file.read() == old
        assert Path(file.name).read_bytes() != old


def test_in_place_an_open_handle_sees_the_new_file(program: Any, old: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".pt2") as file:
        for before in (b"", old, old * 3):
            file.seek(0)
            file.write(before)
            file.flush()
            archive.save(program, file.name, replace="in_place")
            file.seek(0)
            found = file.read()
            assert found == Path(file.name).read_bytes()
            archive.verify(io.BytesIO(found))
            state.write({"a": torch.ones(2)}, file.name, replace="in_place")
            assert torch.equal(state.read(file.name)["a"], torch.ones(2))


def test_in_place_an_error_changes_nothing(program: Any, old: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(old)
    with pytest.raises(AssertionError, match="Expected string"):
        archive.save(program, path, replace="in_place", extra_files={"a": 1})
    assert path.read_bytes() == old
    with pytest.raises(ValueError, match="replace"):
        archive.save(program, path, replace="else")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="replace"):
        archive.save(program, path, replace="in_place", weights="safetensors")
    assert os.listdir(tmp_path) == ["model.pt2"]


def test_in_place_a_full_disk_is_noticed_before(
    program: Any, old: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "model.pt2"
    path.write_bytes(old[:10])
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left") as caught:
        archive.save(program, path, replace="in_place")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == old[:10]


def a_profile() -> fxpress.Profile:
    with fxpress.profile() as profile:
        fxpress.graph_hash(export(OneWeight(), (torch.ones(3),)))
    return profile


# Writers of files other than archives and checkpoints: path, program -> None.
WRITERS: dict[str, Any] = {
    "file": lambda path, _: files.write_file(path, "x" * 2000),
    "page": lambda path, source: fxpress.view.write_page(path, source),
    "view --export": lambda path, source: run(f"view {source} --export {path}"),
    "view --json": lambda path, source: run(f"view {source} --json {path}"),
    "profile": lambda path, _: a_profile().save(path),
    "split --profile": lambda path, source: run(
        f"split {source} --stages 1 --profile {path} --output {path}-stages"
    ),
}


def run(arguments: str) -> None:
    if app.run(arguments.split()) != 0:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), arguments.rsplit(maxsplit=1)[-1])


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A block that behaves as if the disk became full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_old_file(name: str, program: Any, tmp_path: Path) -> None:
    write, folder = WRITERS[name], tmp_path / "folder"
    source, path = tmp_path / "model.pt2", folder / "written"
    archive.save(program, source)
    folder.mkdir()
    if name != "split --profile":  # which reads a file that is there
        path.write_text("old")
        path.chmod(0o640)
    with files_of_at_most(20), pytest.raises(OSError, match="File too large"):
        write(path, source)
    assert [(each.name, each.read_text()) for each in folder.iterdir()] == (
        [] if name == "split --profile" else [("written", "old")]
    )
    write(path, source)
    if name != "split --profile":
        assert mode_of(path) == 0o640
    assert path.stat().st_size > 20


def test_overlays_are_written_at_once(program: Any, tmp_path: Path) -> None:
    overlays = fxpress.view.data.overlays(program)
    paths = fxpress.view.data.write_overlays(tmp_path, overlays)
    before = {path: path.read_bytes() for path in paths}
    with files_of_at_most(20), pytest.raises(OSError, match="File too large"):
        fxpress.view.data.write_overlays(tmp_path, overlays)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_file_is_written_to_what_its_path_leads_to(tmp_path: Path) -> None:
    real, hard, link = (tmp_path / name for name in ("real", "hard", "link"))
    real.write_text("old")
    hard.hardlink_to(real)
    link.symlink_to("real")
    files.write_file(link, "new")
    assert (real.read_text(), hard.read_text(), link.is_symlink()) == ("new", "old", True)
    (tmp_path / "dangling").symlink_to("made")
    files.write_file(tmp_path / "dangling", b"\xff")
    assert (tmp_path / "made").read_bytes() == b"\xff"
    for name, kind in (("", IsADirectoryError), ("none/file", FileNotFoundError)):
        with pytest.raises(kind) as caught:
            files.write_file(tmp_path / name, "new")
        assert caught.value.filename == str(tmp_path / name)
    files.write_file("/dev/null", "new")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    files.write_file(pipe, "through a pipe")
    reader.join()
    assert found == ["through a pipe"]
    assert len(os.listdir(tmp_path)) == 6


@pytest.mark.parametrize("path", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_a_file_is_written_to_the_standard_output(path: str, tmp_path: Path) -> None:
    script = "print('before', flush=True); write_file(sys.argv[1], 'written '); print('after')"
    script = f"import sys; from fxpress._files.archive.files import write_file; {script}"
    command = [sys.executable, "-c", script, path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "before\nwritten after\n"
    with open(tmp_path / "out", "w") as out:
        subprocess.run(command, stdout=out, check=True)
    assert (tmp_path / "out").read_text() == done.stdout
    assert os.listdir(tmp_path) == ["out"]


KILLED = """
import os, sys
from pathlib import Path
from fxpress._files.archive import files, folders
file = files.AtomicFile(Path(sys.argv[1], "file"))
with folders.new_folder(Path(sys.argv[1], "folder")) as place:
    (place / "inside").mkdir()
    (place / "inside" / "file").touch()
    os.kill(os.getpid(), 9)
"""


def test_what_killed_writers_leave_is_removed_by_the_next(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert len(os.listdir(tmp_path)) == 2
    files.write_file(tmp_path / "file", "")
    assert len(os.listdir(tmp_path)) == 2
    with folders.new_folder(tmp_path / "folder") as other:  # one that still writes
        assert sorted(os.listdir(tmp_path)) == sorted([other.name, "file"])
        with folders.new_folder(tmp_path / "folder"):
            assert len(os.listdir(tmp_path)) == 3
        assert other.is_dir()
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]

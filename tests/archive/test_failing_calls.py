"""`save` when the system refuses a call: the old program stays, or the new one is there."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram, export

from fxpress import UnsupportedError, archive
from fxpress._files.archive import folders, replacing, tensor_file, weight_files
from fxpress._files.archive.files import open_output
from fxpress._files.errors import ArchiveError
from tests.support.archived import OneWeight


def program_with(value: float) -> ExportedProgram:
    made = export(OneWeight(), (torch.ones(3),))
    with torch.no_grad():
        made.state_dict["weight"].fill_(value)
    return made


def value_at(path: Path) -> float:
    return float(archive.load(path).state_dict["weight"].detach().flatten()[0])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A program with its weights in a sidecar file."""
    found = tmp_path / "model.pt2"
    archive.save(program_with(1.0), found, weights="safetensors")
    return found


def refusing(number: int, when: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
    def refuse(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if when(*args):
                raise OSError(number, os.strerror(number))
            return real(*args, **options)

        return call

    return refuse


def is_folder(descriptor: int, *_: Any) -> bool:
    return os.path.isdir(f"/proc/self/fd/{descriptor}")


def is_file(descriptor: int, *_: Any) -> bool:
    return not is_folder(descriptor)


# ---- one of two files is in its place -----------------------------------------------------------


def is_program(source: Any, target: Any) -> bool:
    return str(target).endswith(".pt2")


@pytest.mark.parametrize("which", [is_program, lambda *names: not is_program(*names)])
def test_both_files_or_none(path: Path, monkeypatch: pytest.MonkeyPatch, which: Any) -> None:
    before = sorted(os.listdir(path.parent))
    monkeypatch.setattr(os, "replace", refusing(errno.EIO, which)(os.replace))
    with pytest.raises(OSError, match="Input/output error"):
        archive.save(program_with(2.0), path, weights="safetensors")
    assert sorted(os.listdir(path.parent)) == before
    assert value_at(path) == 1.0


def test_an_interrupt_after_the_second_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.replace

    def replace(source: Any, target: Any) -> None:
        real(source, target)
        if is_program(source, target):
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        archive.save(program_with(2.0), path, weights="safetensors")
    assert value_at(path) == 2.0


@pytest.mark.parametrize("weights", ["safetensors", "inline"])
def test_nothing_is_replaced_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: Any
) -> None:
    monkeypatch.setattr(os, "replace", refusing(errno.EIO, is_program)(os.replace))
    with pytest.raises(OSError, match="Input/output error"):
        archive.save(program_with(2.0), tmp_path / "model.pt2", weights=weights)
    assert os.listdir(tmp_path) == []


# ---- names, locks and folders -------------------------------------------------------------------


def test_a_name_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.pt2"
    numbers = iter(["taken", "free"])
    monkeypatch.setattr(folders.secrets, "token_hex", lambda _: "taken")
    taken = folders.temporary_path(path)
    taken.write_bytes(b"of another writer")
    monkeypatch.setattr(folders.secrets, "token_hex", lambda _: next(numbers))
    with_lock = os.open(taken, os.O_RDONLY)
    fcntl.flock(with_lock, fcntl.LOCK_EX)
    archive.save(program_with(2.0), path)
    os.close(with_lock)
    assert value_at(path) == 2.0
    assert taken.read_bytes() == b"of another writer"


def test_a_file_that_is_removed_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, removed = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        if is_file(descriptor) and not removed:
            removed.extend(os.listdir(tmp_path))
            (tmp_path / removed[0]).unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    archive.save(program_with(2.0), tmp_path / "model.pt2")
    assert len(removed) == 1
    assert os.listdir(tmp_path) == ["model.pt2"]


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_without_locks(path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(fcntl, "flock", refusing(number)(fcntl.flock))
    archive.save(program_with(2.0), path, weights="safetensors")
    assert value_at(path) == 2.0
    assert len(os.listdir(path.parent)) == 2


def test_a_lock_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(os.listdir(path.parent))
    monkeypatch.setattr(fcntl, "flock", refusing(errno.EIO, is_file)(fcntl.flock))
    with pytest.raises(OSError, match="Input/output error") as caught:
        archive.save(program_with(2.0), path, weights="inline")
    assert caught.value.filename == str(path)
    assert sorted(os.listdir(path.parent)) == before


def test_a_folder_that_cannot_be_opened(tmp_path: Path) -> None:
    with folders.locked_folder(tmp_path / "none"):
        assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_synced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refusing(errno.EINVAL, is_folder)(real))
        archive.save(program_with(2.0), path)
        assert value_at(path) == 2.0
        patch.setattr(os, "fsync", refusing(errno.EIO, is_folder)(real))
        with pytest.raises(OSError, match="Input/output error"):
            archive.save(program_with(3.0), path)
    assert value_at(path) == 3.0  # it is there, though its name may not be on the disk


# ---- weights that nobody needs ------------------------------------------------------------------


def weights_of(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))


def test_what_a_killed_writer_left(path: Path) -> None:
    left = folders.temporary_path(path)
    (old,) = weights_of(path.parent)
    shutil.copy(path, left)
    path.unlink()
    archive.save(program_with(2.0), path, weights="safetensors")
    assert not left.exists()
    assert old not in weights_of(path.parent)
    assert value_at(path) == 2.0


def test_old_weights_that_cannot_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights of an old program that cannot be read are not removed, because their names are
    unknown."""
    before = weights_of(path.parent)
    unreadable = refusing(errno.EIO)(replacing.named_by)
    monkeypatch.setattr(replacing, "named_by", unreadable)
    archive.save(program_with(2.0), path)
    assert weights_of(path.parent) == before
    assert value_at(path) == 2.0


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "3",
        '{"file": "a.safetensors"}',
        '{"file": "../a.safetensors", "number": "1"}',
        '{"file": "a.so", "number": "1"}',
        '{"file": "a\\u0000.safetensors", "number": "1"}',
        "[" * 100_000,
    ],
    ids=lambda text: text[:30],
)
def test_records_of_places(text: str) -> None:
    with pytest.raises(ArchiveError):
        replacing.place_of(text)


def test_numbers_of_files(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"no tensors")
    assert tensor_file.number_of(path) is None


# ---- in place -----------------------------------------------------------------------------------


def test_in_place_without_a_file_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tempfile.TemporaryFile
    path = tmp_path / "model.pt2"

    def temporary(**options: Any) -> Any:
        if options.get("dir") is not None:
            raise PermissionError(errno.EACCES, "no file here")
        return real()

    monkeypatch.setattr(tempfile, "TemporaryFile", temporary)
    archive.save(program_with(2.0), path, replace="in_place")
    assert value_at(path) == 2.0
    monkeypatch.setattr(tempfile, "TemporaryFile", refusing(errno.ENOSPC)(real))
    with pytest.raises(OSError, match="No space left"):
        open_output(path, in_place=True)
    assert value_at(path) == 2.0


def test_in_place_where_no_space_can_be_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt2"
    monkeypatch.setattr(os, "posix_fallocate", refusing(errno.EOPNOTSUPP)(os.posix_fallocate))
    archive.save(program_with(2.0), path, replace="in_place")
    assert value_at(path) == 2.0


# ---- weights beside the archive -----------------------------------------------------------------


class Kept(torch.nn.Module):
    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)
        self.register_buffer("empty", torch.ones(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.value.real.sum() + self.empty.sum()


def test_weights_that_the_file_has_no_place_for(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    made = export(Kept(torch.ones(2, dtype=torch.complex128)), (torch.ones(2),))
    with pytest.raises(UnsupportedError, match=r"value.*inline"):
        archive.save(made, path, weights="safetensors")
    assert os.listdir(tmp_path) == []


def test_weights_of_classes_of_their_own(tmp_path: Path) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    made = program_with(1.0)
    made.state_dict["weight"] = torch.nn.Parameter(TwoTensor(torch.ones(3), torch.zeros(3)))
    for weights in ("safetensors", "none"):
        with pytest.raises(UnsupportedError, match=r"TwoTensor.*inline"):
            archive.save(made, tmp_path / "model.pt2", weights=weights)
    assert os.listdir(tmp_path) == []


def test_weights_without_elements(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    archive.save(export(Kept(torch.ones(2)), (torch.ones(2),)), path, weights="safetensors")
    assert archive.load(path).state_dict["empty"].shape == (0, 3)


def test_progress_of_weights(tmp_path: Path) -> None:
    done: list[int] = []
    tensors = {"a": torch.ones(3), "b": torch.ones(0), "c": torch.ones(5, dtype=torch.int8)}
    with open(tmp_path / "a.safetensors", "wb") as file:
        tensor_file.write_tensors(file.fileno(), tensors, "1", done.append)
    assert sum(done) == 17
    assert tensor_file.number_of(tmp_path / "a.safetensors") == "1"


def test_weights_for_which_there_is_no_space(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(os.listdir(path.parent))
    monkeypatch.setattr(os, "write", refusing(errno.ENOSPC, is_file)(os.write))
    with pytest.raises(OSError, match="No space left") as caught:
        archive.save(program_with(2.0), path, weights="safetensors")
    assert Path(caught.value.filename).parent == path.parent
    assert sorted(os.listdir(path.parent)) == before


@pytest.mark.parametrize("value", [3, None, "text"])
def test_values_that_are_no_tensors(value: Any) -> None:
    target = torch.ones(2)
    with pytest.raises(archive.SerializeError, match="the value for 'a' to be a tensor"):
        weight_files.fitting("a", target, {"a": value}.__getitem__)

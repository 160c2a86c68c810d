"""File objects whose `write` keeps references to its argument."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from fxpress import _native, archive, state

TENSORS = {"a": torch.arange(1 << 19, dtype=torch.float32), "b": torch.ones(3)}


class Keeper:
    """Keeps all that it gets, in one way or another."""

    def __init__(self, keep: Any) -> None:
        self.kept: list[Any] = []
        self.keep = keep

    def write(self, data: Any) -> int:
        self.kept.append(self.keep(data))
        return len(data)


@pytest.mark.parametrize("keep", [lambda data: data, memoryview], ids=["itself", "view"])
def test_what_is_kept_stays(keep: Any) -> None:
    """Separate bytes, in pieces; not a view of memory that another object will own."""
    expected, keeper = io.BytesIO(), Keeper(keep)
    state.write(TENSORS, expected)
    state.write({name: value.clone() for name, value in TENSORS.items()}, keeper)
    assert b"".join(bytes(each) for each in keeper.kept) == expected.getvalue()


def test_what_is_written_is_the_same(tmp_path: Path) -> None:
    expected = io.BytesIO()
    state.write(TENSORS, expected)
    keeper = Keeper(bytes)
    state.write(TENSORS, keeper)
    assert b"".join(keeper.kept) == expected.getvalue()
    assert max(map(len, keeper.kept)) <= 1 << 20
    with open(tmp_path / "x", "wb") as file:
        state.write(TENSORS, file)
    assert (tmp_path / "x").read_bytes() == expected.getvalue()
    with open(tmp_path / "y", "wb", buffering=0) as plain:
        state.write(TENSORS, plain)
    assert (tmp_path / "y").read_bytes() == expected.getvalue()
    archive.verify(tmp_path / "y")


@pytest.mark.parametrize("write", [lambda data: 3, lambda data: data.release(), lambda data: 1 / 0])
def test_writes_that_fail(write: Any) -> None:
    writer = _native.ArchiveWriter(write, "root")
    with pytest.raises((OSError, ZeroDivisionError, AttributeError)):
        writer.add("large", bytes(1 << 20))


class Raw(io.RawIOBase):
    """A raw file object in Python, for a buffered file of Python's."""

    def __init__(self) -> None:
        self.kept: list[Any] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.kept.append(data)
        return len(data)


def test_buffers_in_front_of_code_get_copies() -> None:
    raw = Raw()
    seen = []
    buffer = io.BufferedWriter(raw, 16)

    class Subclass(io.BytesIO):
        def write(self, data: Any) -> int:
            seen.append(data)
            return len(data)

    for f in (buffer, Subclass()):
        writer = _native.ArchiveWriter(f.write, "root")
        writer.add("large", bytes(1 << 16))
        writer.finish()
    assert b"".join(seen).count(0) > 1 << 16
    assert raw.kept
    assert all(type(data) is bytes for data in seen)

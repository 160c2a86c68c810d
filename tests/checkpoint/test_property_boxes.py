"""Boxes of strided tensors in files equal torch's slices, and few other bytes are read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fxpress import _native
from fxpress._distributed.checkpoint import boxes
from fxpress._distributed.checkpoint.boxes import Extent, read_box, strides_of
from fxpress._files.errors import ArchiveError
from fxpress._files.remote.ranges import Checked, Files, LocalFile
from tests.support.checkpoints import bits

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.float8_e4m3fn, torch.bool)


@st.composite
def boxes_of_tensors(draw: Any) -> dict[str, Any]:
    sizes = draw(st.lists(st.integers(1, 7), max_size=4))
    strides = [draw(st.integers(0, 40)) for _ in sizes]
    if draw(st.booleans()):
        order = draw(st.permutations(range(len(sizes))))
        dense = strides_of([sizes[dim] for dim in order])
        strides = [0] * len(sizes)
        for dim, step in zip(order, dense, strict=True):
            strides[dim] = step
    offsets = [draw(st.integers(0, size)) for size in sizes]
    lengths = [draw(st.integers(0, size - a)) for size, a in zip(sizes, offsets, strict=True)]
    return {
        "sizes": sizes,
        "strides": tuple(strides),
        "offsets": offsets,
        "lengths": lengths,
        "dtype": draw(st.sampled_from(DTYPES)),
        "begin": draw(st.integers(0, 3)),
        "gap": draw(st.sampled_from([0, 8, 512])),
        "most": draw(st.sampled_from([1, 16, 100, 1 << 25])),
        "is_dense": draw(st.booleans()),
    }


class Counting(LocalFile):
    """A file that counts the bytes that are read of it."""

    done = 0

    def read_into(self, begin: int, target: memoryview) -> None:
        super().read_into(begin, target)
        self.done += len(target)


@settings(deadline=None, max_examples=400)
@given(case=boxes_of_tensors())
def test_boxes(case: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    sizes, strides, dtype = case["sizes"], case["strides"], case["dtype"]
    count = 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    torch.manual_seed(0)
    elements = torch.randint(0, 2, (count,)).to(dtype)
    if dtype is not torch.bool:
        elements = torch.randint(0, 100, (count * dtype.itemsize,), dtype=torch.uint8).view(dtype)
    path = tmp_path_factory.mktemp("boxes") / "file"
    data = elements.view(torch.uint8).numpy().tobytes()
    path.write_bytes(b"\xff" * case["begin"] + data)
    whole = elements.as_strided(sizes, strides)
    wanted = whole
    for dim, (a, n) in enumerate(zip(case["offsets"], case["lengths"], strict=True)):
        wanted = wanted.narrow(dim, a, n)
    target = torch.zeros(2 * math.prod(case["lengths"]), dtype=dtype)
    target = target[: math.prod(case["lengths"])] if case["is_dense"] else target[::2]
    target = target.view(case["lengths"])
    file = Counting(path, Files())
    file.gap = case["gap"]  # type: ignore[misc]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boxes, "_MOST", case["most"])
        extent = Extent(file, case["begin"], dtype, strides)
        read_box(extent, case["offsets"], case["lengths"], target)
    file.close()
    assert bits(target) == bits(wanted)
    if case["gap"] == 0:
        assert file.done <= wanted.nbytes


@pytest.mark.parametrize("most", [64, 1 << 25])
def test_what_is_read_as_a_whole_is_compared_with_its_checksum(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boxes, "_MOST", most)
    value = torch.arange(60, dtype=torch.int16).reshape(5, 12)
    data = value.numpy().tobytes()
    (tmp_path / "file").write_bytes(data)
    for crc, is_right in ((_native.crc32(data), True), (1, False)):
        file = LocalFile(tmp_path / "file", Files())
        part = Checked(file, 0, len(data), crc, "the part")
        extent = Extent(file, 0, value.dtype, (12, 1), part, True)
        for target in (torch.zeros(5, 12, dtype=torch.int16), torch.zeros(5, 12)):
            read_box(extent, (1, 0), (2, 12), torch.zeros(2, 12))  # not all of it
            if is_right:
                read_box(extent, (0, 0), (5, 12), target)
                part.check()
                assert torch.equal(target, value.to(target.dtype))
            else:
                with pytest.raises(ArchiveError, match="the part is damaged: its checksum is"):
                    read_box(extent, (0, 0), (5, 12), target)
                with pytest.raises(ArchiveError, match="the part is damaged: its checksum is"):
                    part.check()
        file.close()


def test_few_files_are_open(tmp_path: Path) -> None:
    files = Files()
    made = []
    for number in range(200):
        (tmp_path / f"{number}").write_bytes(b"%03d" % number)
        made.append(LocalFile(tmp_path / f"{number}", files))
    for _ in range(2):
        for number, file in enumerate(made):
            assert file.read(0, 3) == b"%03d" % number
    assert sum(file._open is not None for file in made) <= 64
    files.close()
    assert all(file._open is None for file in made)

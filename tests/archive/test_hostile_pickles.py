"""Pickles in an archive whose values are too large, and example inputs that cannot be read."""

from __future__ import annotations

import io
import logging
import zlib
from collections.abc import Iterator

import pytest

import fxpress
from fxpress import archive
from tests.fuzz.hostile.cases import SAMPLES, records_of, written
from tests.fuzz.hostile.zips import directory, entry, local
from tests.support.records import read_records, write_records

_WEIGHTS = "archive/data/weights/model.pt"
_CODE = b"cos\nsystem\n(S'true'\ntR."
# Each refers to the one before it twice, or holds it.
_DOUBLED = b"]q\0" + b"".join(bytes([40, 104, i, 104, i, 116, 113, i + 1]) for i in range(40))
_DEEP = b"".join([b"\x80\x02", b"]" * 600, b"a" * 599, b"."])


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def saved(content: bytes) -> bytes:
    """A file of torch.save with another pickle in it."""
    inner = read_records(records_of("keys")[SAMPLES])
    name = next(each for each in inner if each.endswith("data.pkl"))
    return write_records(inner | {name: content})


def deflated(content: bytes, size: int) -> bytes:
    """A file of torch.save with a pickle that is said to unpack to a number of bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packer.compress(content) + packer.flush()
    crc, name = zlib.crc32(content), b"archive/data.pkl"
    head = local(name, crc, len(packed), size, 8) + packed
    return directory(head, [entry(name, 0, crc, len(packed), size, 8)])


LIMITED = {
    "depth": saved(_DEEP),
    "tuples": saved(b"\x80\x02)" + b"\x85" * 600 + b"."),
    "dictionaries": saved(b"\x80\x02" + b"}K\x01" * 600 + b"}" + b"s" * 600 + b"."),
    "elements": saved(b"\x80\x02(" + _DOUBLED + b"}t."),
    "deflated": deflated(_DEEP, len(_DEEP)),
    "too large": deflated(bytes(1 << 27), 1 << 27),
}


@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize("record", [SAMPLES, _WEIGHTS])
def test_limits(name: str, record: str) -> None:
    """Whatever a load is allowed to unpickle, it refuses the file."""
    data = written("keys", {record: LIMITED[name]})
    with pytest.raises(fxpress.Error):
        archive.load(io.BytesIO(data), allow_pickle=True)


LEFT_OUT = {
    "code": saved(_CODE),
    "too few bytes": deflated(bytes(1 << 20), 1 << 31),
    "a bare pickle": _CODE,
    "no zip": b"PK\x03\x04",
    "no pickle": write_records({"archive/version": b"3\n"}),
    "contains itself": saved(b"\x80\x02(]q\0h\0ah\0\x85}t."),
    "cut": saved(b"\x80\x02(" + _DOUBLED),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_example_inputs_that_a_load_leaves_out(name: str) -> None:
    data = written("keys", {SAMPLES: LEFT_OUT[name]})
    assert archive.load(io.BytesIO(data)).example_inputs is None

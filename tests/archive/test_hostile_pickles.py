"""Pickles in an archive whose values are too large, and example inputs that cannot be read."""

from __future__ import annotations

import codecs
import io
import logging
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nested._internal import nested_tensor

import fxpress
from fxpress import archive
from fxpress.serialize import deserialize_torch_artifact
from tests.fuzz.hostile.cases import SAMPLES, records_of, written
from tests.fuzz.hostile.zips import directory, entry, local
from tests.support.called import Called
from tests.support.records import read_records, write_records

_WEIGHTS = "archive/data/weights/model.pt"
_CODE = b"cos\nsystem\n(S'true'\ntR."
# Each refers to the one before it twice, or holds it.
_DOUBLED = b"]q\0" + b"".join(bytes([40, 104, i, 104, i, 116, 113, i + 1]) for i in range(40))
_DEEP = b"".join([b"\x80\x02", b"]" * 600, b"a" * 599, b"."])


_TEXT = b"\x80\2X" + (1 << 20).to_bytes(4, "little") + b"a" * (1 << 20) + b"q\1"
_BYTES = _TEXT + b"c_codecs\nencode\nh\1X\6\0\0\0latin1\x86Rq\1"


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
    """A file of torch.save with a pickle whose header states a number of unpacked bytes."""
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
    "copies of bytes": saved(
        _BYTES + b"cbuiltins\nbytearray\nq\2](" + b"h\2h\1\x85R" * 300 + b"e."
    ),
    "copies of copies": saved(
        _BYTES + b"cbuiltins\nbytearray\nq\2" + b"h\2h\1\x85Rq\1" * 300 + b"."
    ),
    "sets of bytes": saved(_BYTES + b"cbuiltins\nset\nq\2](" + b"h\2h\1\x85R" * 4 + b"e."),
    "sizes of texts": saved(_TEXT + b"ctorch\nSize\nq\2](" + b"h\2h\1\x85R" * 4 + b"e."),
    "uses": deflated(b"\x80\2Nq\1" + b"h\1" * (1 << 22) + b".", (1 << 23) + 6),
    "protocols": deflated(b"\x80\2" * (1 << 22) + b"N.", (1 << 23) + 2),
}


@pytest.mark.parametrize("name", LIMITED)
@pytest.mark.parametrize("record", [SAMPLES, _WEIGHTS])
def test_limits(name: str, record: str) -> None:
    """A load refuses the file even if it may unpickle anything."""
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


HOOKS: Any = OrderedDict()
FUNCTIONS = torch._utils
STORAGE = torch.ones(4).storage()  # 16 bytes
SCALE = (torch.per_tensor_affine, 1.0, 0)


def view(*where: Any, state: Any = None) -> Called:
    """A tensor of an offset, sizes and strides."""
    return Called(FUNCTIONS._rebuild_tensor_v2, STORAGE, *where, False, HOOKS, state=state)


OUTSIDE: dict[str, Any] = {
    "too many": view(0, (5,), (1,)),
    "too far": view(3, (1, 2), (1, 1)),
    "strides": view(0, (2, 2), (3, 1)),
    "a negative offset": view(-1, (2,), (1,)),
    "a negative stride": view(3, (2,), (-1,)),
    "not as many strides": view(0, (2, 2), (1,)),
    "more bytes than there are": view(0, (1 << 62, 4), (1, 1 << 61)),
    "of the first version": Called(FUNCTIONS._rebuild_tensor, STORAGE, 2, (3,), (1,)),
    "of another dtype": Called(
        *(FUNCTIONS._rebuild_tensor_v3, STORAGE, 0, (3,), (1,), False, HOOKS, torch.float64)
    ),
    "a smaller dtype as hooks": Called(
        *(FUNCTIONS._rebuild_tensor_v2, STORAGE, 0, (16,), (1,), False, torch.uint8)
    ),
    "quantized": Called(
        *(FUNCTIONS._rebuild_qtensor, torch.ones(4, dtype=torch.int8).storage()),
        *(0, (1 << 20,), (1,), SCALE, False, HOOKS),
    ),
    "no bytes": Called(FUNCTIONS._rebuild_tensor, torch.ones(0).storage(), 0, (1 << 20,), (1,)),
    "in a parameter": Called(FUNCTIONS._rebuild_parameter, view(0, (9,), (1,)), True, HOOKS),
    "with attributes": Called(
        *(torch._tensor._rebuild_from_type_v2, FUNCTIONS._rebuild_tensor_v2, torch.Tensor),
        (STORAGE, 0, (9,), (1,), False, HOOKS),
        {"a": 1},
    ),
    "by its state": view(0, (4,), (1,), state=(STORAGE, 0, (1 << 20,), (1,))),
    "by the state of a parameter": Called(
        *(FUNCTIONS._rebuild_parameter, torch.ones(4), False, HOOKS),
        state=(STORAGE, 0, (1 << 20,), (1,)),
    ),
    "by the state of an empty tensor": Called(
        torch.Tensor, state=(torch.ones(2), 0, (1 << 20,), (1,))
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_tensors_outside_of_their_storage(name: str) -> None:
    buffer = io.BytesIO()
    torch.save({"a": OUTSIDE[name]}, buffer)
    with pytest.raises(fxpress.SerializeError):
        deserialize_torch_artifact(buffer.getvalue())
    data = written("keys", {_WEIGHTS: buffer.getvalue()})
    with pytest.raises(fxpress.Error):
        archive.load(io.BytesIO(data))


def test_tensors_that_end_with_their_storage() -> None:
    inside = (
        view(3, (1,), (9,)),
        view(0, (2, 2), (2, 1)),
        view(9, (0,), (1,)),
        view(0, (7,), (0,)),
    )
    buffer = io.BytesIO()
    torch.save(inside, buffer)
    buffer.seek(0)
    found = deserialize_torch_artifact(buffer.getvalue())
    wanted = torch.load(buffer, weights_only=True)
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.stride() == theirs.stride()
        assert torch.equal(ours, theirs)
        assert ours.untyped_storage().nbytes() == STORAGE.nbytes()


# torch's unpickler of weights reads each of them, and a few bytes determine the size of the result.
MULTIPLIED: dict[str, Any] = {
    "a bytearray of the items of a size": saved(
        b"\x80\2cbuiltins\nbytearray\nctorch\nSize\n(K\1tR\x85RR}\x86."
    ),
    "the same within another call": saved(
        b"\x80\2ctorch._tensor\n_rebuild_from_type_v2\n(cbuiltins\nbytearray\ncbuiltins\nbytearray\n"
        b"ctorch\nSize\n(K\1t\x85R}tR}\x86."
    ),
    "a bytearray of the size in a tensor": Called(bytearray, torch.tensor(1)),
    "a set of a tensor": Called(set, torch.ones(1).expand(4)),
    "a size of a tensor": Called(torch.Size, torch.ones(1, dtype=torch.int64).expand(4)),
    "a set of a storage": Called(set, STORAGE),
    "names of characters": Called(codecs.encode, "\ufbf9", "ascii", "namereplace"),
}


@pytest.mark.parametrize("name", MULTIPLIED)
def test_calls_whose_cost_is_not_in_the_pickle(name: str) -> None:
    content = MULTIPLIED[name]
    if isinstance(content, Called):
        buffer = io.BytesIO()
        torch.save((content, {}), buffer)
        content = buffer.getvalue()
    with pytest.raises(fxpress.SerializeError):
        deserialize_torch_artifact(content)


ONE = torch.zeros(1, dtype=torch.int64)
COUNT = 1 << 20
NESTED = {
    **{"values": torch.ones(1, 1), "offsets": ONE.expand(COUNT), "lengths": None},
    **{"_ragged_idx": 1, "_metadata_cache": {}, "requires_grad": False},
}
EXPANDED: dict[str, Any] = {
    "indices": Called(
        *(FUNCTIONS._rebuild_sparse_tensor, torch.sparse_coo),
        (ONE.expand(1, COUNT), torch.ones(1).expand(COUNT), (4,), False),
    ),
    "offsets": Called(
        *(torch._tensor._rebuild_from_type_v2, nested_tensor._rebuild_njt),
        *(nested_tensor.NestedTensor, (NESTED,), {}),
    ),
    "a copy": Called(
        *(FUNCTIONS._rebuild_device_tensor_from_cpu_tensor, ONE.expand(COUNT)),
        *(torch.float64, "cpu", False),
    ),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_expanded_tensors_that_are_copied_or_checked(name: str) -> None:
    buffer = io.BytesIO()
    torch.save({"a": EXPANDED[name]}, buffer)
    with pytest.raises(fxpress.LimitError, match="memory"):
        deserialize_torch_artifact(buffer.getvalue(), limits=archive.Limits(memory=COUNT))

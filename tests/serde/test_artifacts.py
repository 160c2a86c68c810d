"""The bytes that `torch.save` writes for values, and reading them."""

from __future__ import annotations

import io
import pickle
import zipfile
from typing import Any

import pytest
import torch
from torch._export.serde import serialize as theirs
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fxpress import serialize as ours
from tests.support.records import read_records, write_records


def saved(value: Any, kind: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return write_records(read_records(buffer.getvalue()), kind)


def test_values_that_cannot_be_pickled() -> None:
    def local() -> None:
        pass

    for value in (local, [local]):
        with pytest.raises((AttributeError, pickle.PicklingError)) as expected:
            theirs.serialize_torch_artifact(value)
        with pytest.raises(type(expected.value)) as caught:
            ours.serialize_torch_artifact(value)
        assert isinstance(caught.value, ours.SerializeError)
        assert str(expected.value) in str(caught.value)


def test_values_that_are_no_dict_or_tuple() -> None:
    data = saved([torch.ones(2)])
    with pytest.raises(AssertionError, match="got list"):
        theirs.deserialize_torch_artifact(data)
    with pytest.raises(ours.SerializeError, match="a list, not a tuple or dict"):
        ours.deserialize_torch_artifact(data)


def test_deflated_tensors() -> None:
    """Other programs deflate the records of zip files."""
    value = {"a": torch.arange(100.0), "b": torch.empty(0), "c": torch.empty(3, 0)}
    data = saved(value, zipfile.ZIP_DEFLATED)
    read, expected = (module.deserialize_torch_artifact(data) for module in (ours, theirs))
    assert list(read) == list(expected) == list(value)
    for name, tensor in expected.items():
        assert torch.equal(read[name], tensor)


@pytest.mark.parametrize("record", ["archive/data/0", "archive/data.pkl"])
def test_deflated_bytes_that_are_damaged(record: str) -> None:
    """torch reads uninitialized memory in place of a tensor's bytes."""
    data = bytearray(saved({"a": torch.arange(100.0)}, zipfile.ZIP_DEFLATED))
    data[data.index(record.encode()) + len(record)] = 0xFF  # the kind of the first block
    with pytest.raises(ours.SerializeError):
        ours.deserialize_torch_artifact(bytes(data))


class Own:
    """Something that only unpickling makes."""


def test_fake_tensors_beside_what_only_unpickling_makes() -> None:
    with FakeTensorMode():
        value = {"fake": torch.nn.Parameter(torch.empty(2, 3)), "own": Own()}
    data = ours.serialize_torch_artifact(value)
    assert data == theirs.serialize_torch_artifact(value)
    read = ours.deserialize_torch_artifact(data, allow_pickle=True)
    assert isinstance(read["own"], Own)
    assert isinstance(read["fake"], FakeTensor)
    assert read["fake"].shape == (2, 3)

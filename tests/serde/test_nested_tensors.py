"""Nested tensors in files: offsets outside of the values make operators read other memory."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch.export import export
from torch.nested._internal.nested_tensor import NestedTensor, _rebuild_njt

import fxpress
from fxpress.serialize import (
    SerializeError,
    deserialize_torch_artifact,
    serialize_torch_artifact,
)

ROWS = [torch.arange(6.0).reshape(2, 3), torch.arange(12.0).reshape(4, 3)]


def jagged() -> Any:
    return torch.nested.nested_tensor(ROWS, layout=torch.jagged)


def with_lengths() -> Any:
    values = torch.nn.functional.pad(torch.cat(ROWS), (0, 0, 0, 2))
    offsets, lengths = torch.tensor([0, 2, 8]), torch.tensor([2, 4])
    return torch.nested.nested_tensor_from_jagged(values, offsets, lengths)


def other_dimension() -> Any:
    return jagged().transpose(1, 2)


def in_use() -> Any:
    """Return a nested tensor whose shortest and longest row are known."""
    nested = jagged().requires_grad_()
    nested._get_max_seqlen(), nested._get_min_seqlen()
    return nested


@pytest.mark.parametrize("make", [jagged, with_lengths, other_dimension, in_use])
def test_nested_tensors_come_back(make: Any) -> None:
    nested = make()
    nested.note = "kept"
    read = deserialize_torch_artifact(serialize_torch_artifact({"x": nested}))["x"]
    assert type(read) is NestedTensor
    assert read.note == "kept"
    for part in ("_values", "_offsets", "_lengths"):
        mine, other = getattr(read, part), getattr(nested, part)
        assert mine is other or torch.equal(mine, other)
    assert (read._ragged_idx, read.requires_grad) == (nested._ragged_idx, nested.requires_grad)
    assert all(map(torch.equal, read.unbind(), nested.unbind()))


def test_example_inputs_of_a_program() -> None:
    program = export(torch.nn.ReLU(), (torch.ones(2),))
    program._example_inputs = ((jagged(),), {})
    file = io.BytesIO()
    fxpress.save(program, file)
    file.seek(0)
    (read,), _ = fxpress.load(file).example_inputs
    assert all(map(torch.equal, read.unbind(), ROWS))


class Reduced:
    """Pickles as a call."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def arguments(**changes: Any) -> dict[str, Any]:
    values, offsets = torch.cat(ROWS), torch.tensor([0, 2, 6])
    given = {"values": values, "offsets": offsets, "lengths": None, "_ragged_idx": 1}
    return given | {"_metadata_cache": {}, "requires_grad": False} | changes


WRONG = {
    "an offset behind the values": {"offsets": torch.tensor([0, 2, 1000])},
    "a negative offset": {"offsets": torch.tensor([-5, 2, 6])},
    "offsets that fall": {"offsets": torch.tensor([0, 6, 2])},
    "offsets that are floats": {"offsets": torch.tensor([0.0, 2.0, 6.0])},
    "a length behind the values": {"lengths": torch.tensor([2, 5])},
    "a negative length": {"lengths": torch.tensor([2, -1])},
    "a length too few": {"lengths": torch.tensor([2])},
    "no such dimension": {"_ragged_idx": 7},
    "a longest row that is longer": {"_metadata_cache": {"max_seqlen": torch.zeros(99, 0)}},
    "no offsets": {"offsets": None},
    "values that are none": {"values": 3},
}


def test_arguments_that_are_right() -> None:
    saved = serialize_torch_artifact({"x": Reduced(_rebuild_njt, (arguments(),))})
    assert all(map(torch.equal, deserialize_torch_artifact(saved)["x"].unbind(), ROWS))


@pytest.mark.parametrize("name", WRONG)
def test_rows_outside_of_the_values_are_refused(name: str) -> None:
    saved = serialize_torch_artifact({"x": Reduced(_rebuild_njt, (arguments(**WRONG[name]),))})
    with pytest.raises(SerializeError):
        deserialize_torch_artifact(saved)


def test_the_class_cannot_be_called() -> None:
    call = Reduced(NestedTensor, (torch.cat(ROWS), torch.tensor([0, 2, 1000])))
    with pytest.raises(SerializeError):
        deserialize_torch_artifact(serialize_torch_artifact({"x": call}))


def test_attributes_cannot_replace_the_parts() -> None:
    state = {"_offsets": torch.tensor([0, 2, 1000]), "_values": torch.ones(1, 3), "a": 1}
    made = (_rebuild_njt, NestedTensor, (arguments(),), state)
    saved = serialize_torch_artifact({"x": Reduced(torch._tensor._rebuild_from_type_v2, made)})
    read = deserialize_torch_artifact(saved)["x"]
    assert read.a == 1
    assert all(map(torch.equal, read.unbind(), ROWS))

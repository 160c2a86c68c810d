"""Damaged and hostile programs: they are read, or refused with a SerializeError."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
from collections.abc import Iterator
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._export.serde import schema
from torch.export import Dim, export

import fxpress
from fxpress.serialize import (
    ExportedProgramDeserializer,
    SerializedArtifact,
    SerializeError,
    _bytes_to_dataclass,
    canonicalize,
    deserialize,
    serialize,
)
from tests.support.generated import examples

OPTIONS = examples(100)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, k: int) -> Any:
        self.count.add_(1)
        y = torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x.sin(), (x,))
        return {"a": y.topk(2).values, "b": x.shape[0] * 2, "c": torch.cat([x, y]).to(torch.half)}


@functools.cache
def written() -> SerializedArtifact:
    shapes = ({0: Dim("n", min=2)}, None)
    program = export(Branches(), (torch.randn(6, 4), 3), dynamic_shapes=shapes, strict=False)
    return serialize(program)


def read(text: bytes) -> None:
    with contextlib.suppress(fxpress.SerializeError, fxpress.UnsupportedError):
        deserialize(dataclasses.replace(written(), exported_program=text))


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = enumerate(value)  # type: ignore[assignment]
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


@functools.cache
def all_places() -> list[tuple[Any, ...]]:
    return places(json.loads(written().exported_program))


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10)
    | st.sampled_from([[], {}, [[]], {"": {}}])
)


@OPTIONS
@given(st.data())
def test_values_replaced_or_moved(data: st.DataObject) -> None:
    stored = json.loads(written().exported_program)
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(all_places()))
        other = data.draw(st.sampled_from(all_places()))
        try:
            owner = functools.reduce(lambda value, key: value[key], parents, stored)
            taken = functools.reduce(lambda value, key: value[key], other, stored)
            how = data.draw(st.sampled_from(["value", "copy", "delete"]))
            if how == "delete":
                del owner[last]
            else:
                owner[last] = data.draw(VALUES) if how == "value" else json.loads(json.dumps(taken))
        except (KeyError, IndexError, TypeError):
            continue
    read(json.dumps(stored).encode())


@OPTIONS
@given(st.data())
def test_bytes_replaced(data: st.DataObject) -> None:
    text = bytearray(written().exported_program)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        length = data.draw(st.integers(0, 8))
        text[at : at + length] = data.draw(st.binary(max_size=8))
    read(bytes(text))


@functools.cache
def object_places() -> list[tuple[Any, ...]]:
    """Paths of attributes, positions and keys in the program as objects of the schema."""

    def walk(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        if path:
            yield path
        if hasattr(value, "__dict__"):
            for name, inner in vars(value).items():
                yield from walk(inner, (*path, name))
        elif isinstance(value, (list, dict)):
            for key in range(len(value)) if isinstance(value, list) else value:
                yield from walk(value[key], (*path, key))

    return list(walk(as_objects(), ()))


def as_objects() -> Any:
    return _bytes_to_dataclass(schema.ExportedProgram, written().exported_program)


def inside(value: Any, key: Any) -> Any:
    return vars(value)[key] if hasattr(value, "__dict__") else value[key]


@OPTIONS
@given(st.data())
def test_objects_replaced(data: st.DataObject) -> None:
    program = as_objects()
    for _ in range(data.draw(st.integers(1, 3))):
        *parents, last = data.draw(st.sampled_from(object_places()))
        other = data.draw(st.sampled_from(object_places()))
        try:
            owner = functools.reduce(inside, parents, program)
            taken = copy.deepcopy(functools.reduce(inside, other, program))
            held = vars(owner) if hasattr(owner, "__dict__") else owner
            held[last] = data.draw(VALUES) if data.draw(st.booleans()) else taken
        except (KeyError, IndexError, TypeError):
            continue
    refused = (SerializeError, TypeError, AssertionError, AttributeError, KeyError, RuntimeError)
    with contextlib.suppress(*refused):
        canonicalize(program, {"c"})
    try:
        ExportedProgramDeserializer().deserialize(program, {}, {})
    except refused:
        pass
    except Exception as error:
        if not type(error).__module__.startswith("torch"):  # its verifier found it
            raise

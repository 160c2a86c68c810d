"""Objects of torch's schema classes, dicts and JSON: as torch makes them of each other."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import sys
from enum import Enum
from typing import Annotated, Any, ForwardRef, Union

import pytest
import torch
from torch import nn
from torch._export.serde import schema
from torch._export.serde import serialize as torch_serialize
from torch.export import export

import fxpress
from fxpress import serialize
from fxpress._files.serde.schema import CLASSES
from fxpress.serialize import SerializeError
from tests.support.memory import check_no_blocks_leak


def text() -> bytes:
    program = export(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), (torch.randn(3, 2),), strict=True)
    return serialize.serialize(program).exported_program


def same(ours: Any, theirs: Any) -> None:
    """Equal in everything that can be seen: classes, order of fields, tags."""
    assert type(ours) is type(theirs)
    if dataclasses.is_dataclass(theirs):
        mine, held = vars(ours), vars(theirs)
        if hasattr(theirs, "_type"):  # fields of unions that are not set may be there, as None
            mine, held = ({k: v for k, v in x.items() if v is not None} for x in (mine, held))
        assert list(mine) == list(held)
        assert repr(ours) == repr(theirs)
        for name, value in held.items():
            same(mine[name], value)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key, value in theirs.items():
            same(ours[key], value)
    elif isinstance(theirs, list):
        for a, b in zip(ours, theirs, strict=True):
            same(a, b)
    else:
        assert ours == theirs
        if type(theirs).__name__ == "_UnionTag":
            assert ours._cls is theirs._cls


def test_z110_objects_from_json() -> None:
    made = text()
    ours = serialize._bytes_to_dataclass(schema.ExportedProgram, made)
    theirs = torch_serialize._bytes_to_dataclass(schema.ExportedProgram, made)
    same(ours, theirs)
    assert ours == theirs
    same(serialize._dict_to_dataclass(schema.ExportedProgram, json.loads(made)), theirs)
    for f in (serialize, torch_serialize):
        for program in (ours, theirs):
            assert f._to_json_bytes(program) == made
            assert json.dumps(f._dataclass_to_dict(program)).encode() == made
    assert copy.deepcopy(ours) == theirs
    assert pickle.loads(pickle.dumps(ours.opset_version)) == theirs.opset_version


def test_z1_to_z5_unions_that_were_read_are_unions() -> None:
    argument = serialize._bytes_to_dataclass(schema.Argument, b'{"as_int": 3}')
    assert argument.type == "as_int"
    assert argument.value == argument.as_int == 3
    assert repr(argument) == "Argument(as_int=3)"
    assert argument == schema.Argument.create(as_int=3)
    assert not hasattr(argument, "as_float")
    with pytest.raises(AssertionError):
        assert argument.type == "as_nothing"
    first, second = (
        serialize._bytes_to_dataclass(schema.Argument, b'{"as_ints": []}') for _ in "ab"
    )
    first.as_ints.append(1)
    assert second.as_ints == []


def test_z110_unknown_and_missing_keys() -> None:
    data = {"target": "t", "inputs": [], "outputs": [], "metadata": {}, "new": [1, {"a": None}]}
    made = json.dumps(data).encode()
    theirs = torch_serialize._bytes_to_dataclass(schema.Node, made)
    same(serialize._bytes_to_dataclass(schema.Node, made), theirs)
    same(serialize._dict_to_dataclass(schema.Node, data), theirs)
    del data["target"]
    with pytest.raises(SerializeError, match="'target' of Node is missing"):
        serialize._bytes_to_dataclass(schema.Node, json.dumps(data).encode())
    with pytest.raises(TypeError):
        serialize._dict_to_dataclass(schema.Node, data)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 0.1, 1e300])
def test_z109_floats(value: float) -> None:
    argument = schema.Argument.create(as_floats=[value])
    made = torch_serialize._to_json_bytes(argument)
    assert serialize._to_json_bytes(argument) == made
    again = serialize._bytes_to_dataclass(schema.Argument, made)
    assert repr(again) == repr(torch_serialize._bytes_to_dataclass(schema.Argument, made))


@pytest.mark.parametrize(
    "number",
    [
        *("1e400", "-1E+400", "1e-400", "-1e-400", "0e400", "0.0", "-0.0e-400"),
        *("1" + "0" * 400 + ".5", "0." + "0" * 400 + "1", "0." + "0" * 400 + "1e500"),
        *("1" + "0" * 400 + ".0e-500", "1e99999999999999999999", "-1e-99999999999999999999"),
        *("1" + "0" * 400 + "e9", "123456789" * 50 + "e-440"),
    ],
)
def test_numbers_that_are_too_long_for_a_float(number: str) -> None:
    made = f'{{"as_float": {number}}}'.encode()
    read = [
        module._bytes_to_dataclass(schema.Argument, made).as_float
        for module in (serialize, torch_serialize)
    ]
    assert repr(read[0]) == repr(read[1])


@pytest.mark.parametrize(
    "text",
    [
        r"\ud800",
        r"\ud800x",
        r"\ud800\u0041",
        r"\udc00\ud800",
        r"\ud83d\ude00",
        r"\ud800\ud83d\ude00",
    ],
)
def test_surrogates_on_their_own(text: str) -> None:
    made = f'{{"as_string": "{text}"}}'.encode()
    read = [
        module._bytes_to_dataclass(schema.Argument, made).as_string
        for module in (serialize, torch_serialize)
    ]
    assert read[0] == read[1]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_floats_that_json_has_no_numbers_for(value: float) -> None:
    assert serialize._dataclass_to_dict([value]) == torch_serialize._dataclass_to_dict([value])


class Colour(Enum):
    RED = "red"


def test_enums_that_are_no_numbers() -> None:
    value = {"a": [Colour.RED]}
    expected = torch_serialize.EnumEncoder().encode(value)
    assert serialize.EnumEncoder().encode(value) == expected


@pytest.mark.parametrize(
    ("hint", "data"),
    [
        (ForwardRef("Device"), {"type": "cpu", "index": None}),
        (Annotated[schema.Device, 10], {"type": "cpu", "index": 1}),
        (Annotated[int, 10], 5),
    ],
    ids=str,
)
def test_hints_as_schemas_have_them(hint: Any, data: Any) -> None:
    same(serialize._dict_to_dataclass(hint, data), torch_serialize._dict_to_dataclass(hint, data))


@pytest.mark.parametrize(
    ("hint", "data"),
    [(Union[int, str, None], 5), (schema.Argument, {1: 2})],  # noqa: UP007
    ids=["three types", "a tag that is a number"],
)
def test_data_that_no_schema_has(hint: Any, data: Any) -> None:
    for module in (serialize, torch_serialize):
        with pytest.raises(AssertionError, match="expected"):
            module._dict_to_dataclass(hint, data)


@dataclasses.dataclass
class Own:
    """A class that is none of the schema."""

    a: int


def test_a_class_of_ones_own() -> None:
    for module in (serialize, torch_serialize):
        assert module._bytes_to_dataclass(Own, b'{"a": 1}') == Own(1)
    with pytest.raises(TypeError, match="expected bytes"):  # AttributeError in torch
        serialize._bytes_to_dataclass(Own, '{"a": 1}')


def test_a_tag_that_the_union_does_not_have() -> None:
    argument = schema.Argument.create(as_int=1)
    argument._type = "as_nothing"
    with pytest.raises(AttributeError, match="as_nothing"):
        serialize._to_json_bytes(argument)


def test_values_that_are_not_of_the_schema() -> None:
    """Written as torch writes them: enums, tuples, bytes, subclasses of the simple types."""
    device = schema.Device(type=torch.torch_version.TorchVersion("2.0"), index=True)
    node = schema.Node("t", (), [], {"a": b"xyz"}, name=schema.ScalarType.LONG)
    meta = schema.Argument.create(as_scalar_type=schema.ScalarType.LONG)
    for value in (device, node, meta):
        assert serialize._to_json_bytes(value) == torch_serialize._to_json_bytes(value)
    assert serialize.EnumEncoder().encode([schema.Layout.Strided, b"a"]) == '[7, "YQ=="]'


def test_errors() -> None:
    for function in (serialize._to_json_bytes, torch_serialize._to_json_bytes):
        with pytest.raises(RuntimeError, match=r"Please use Argument\.create"):
            function(schema.Argument(*[None] * 31))
        with pytest.raises(TypeError, match="not JSON serializable"):
            function(schema.Device(type=object()))
    deep: Any = schema.Argument.create(as_int=1)
    for _ in range(100_000):
        deep = schema.Argument.create(as_string_to_argument={"a": deep})
    # From 3.14 on Python counts no calls of C: the limit for depth comes first.
    with pytest.raises((RecursionError, fxpress.LimitError)):
        serialize._to_json_bytes(deep)
    while deep.type == "as_string_to_argument":  # taken apart without recursion
        deep = deep.as_string_to_argument.pop("a")
    for cls, data in ((schema.Argument, {}), (schema.Argument, {"as_int": 1, "as_float": 1.0})):
        with pytest.raises(AssertionError):
            serialize._dict_to_dataclass(cls, data)
    with pytest.raises(AssertionError, match="Unresolved"):
        serialize._dict_to_dataclass("Nothing", {})


def test_no_references_are_lost_or_kept() -> None:
    made = text()
    program = serialize._bytes_to_dataclass(schema.ExportedProgram, made)
    nodes = program.graph_module.graph.nodes
    before = [sys.getrefcount(x) for x in (*nodes, *(n.target for n in nodes))]
    for _ in range(5):
        CLASSES.write(program)
    assert [sys.getrefcount(x) for x in (*nodes, *(n.target for n in nodes))] == before

    def there_and_back() -> None:
        serialize._to_json_bytes(serialize._bytes_to_dataclass(schema.ExportedProgram, made))

    check_no_blocks_leak(there_and_back, 20)

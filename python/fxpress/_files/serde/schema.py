"""Describe torch's serialization schema to the native code.

The description has the fields of the installed torch's dataclasses: their order, types and
defaults. The native code rejects fields that it does not support.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from typing import Any

from fxpress import _native
from fxpress._files.serde import native_table
from fxpress._torch.serde import Union, make_union_tag, schema

native_table.fill()

_SIMPLE = {bool: "bool", int: "int", float: "float", str: "str"}


def _shape(hint: Any) -> str:
    """Return a type hint in the notation of `csrc/schema/schema.h`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType) and arguments[1] is type(None):
        return "optional " + _shape(arguments[0])
    if origin is list:
        return "list " + _shape(arguments[0])
    if origin is dict and arguments[0] is str:
        return "map " + _shape(arguments[1])
    if isinstance(hint, str):
        return hint  # Python 3.10 does not resolve names inside `dict[str, "..."]`
    if isinstance(hint, type) and issubclass(hint, enum.IntEnum):
        return "int"
    return _SIMPLE.get(hint) or str(hint.__name__)


def _members(hint: Any) -> dict[int, Any] | None:
    """Return value -> member of the IntEnum in a hint like `list[ScalarType]`; None without one."""
    if isinstance(hint, type) and issubclass(hint, enum.IntEnum):
        return {member.value: member for member in hint}
    return next(filter(None, map(_members, typing.get_args(hint))), None)


@functools.cache
def hints_of(cls: Any) -> dict[str, Any]:
    """Return name -> type, for the fields of a schema class."""
    return typing.get_type_hints(cls, globalns={**vars(schema), "NodeSource": NodeSource})


def _default(field: dataclasses.Field[Any]) -> str | None:
    """Return the default of a field as JSON, or None."""
    if field.default_factory is not dataclasses.MISSING:
        return json.dumps(field.default_factory())
    return None if field.default is dataclasses.MISSING else json.dumps(field.default)


def describe(cls: Any) -> tuple[str, bool, list[tuple[str, str, str | None]]]:
    """Return (name, whether it is a union, [(field, shape, default)]) of a schema class."""
    hints = hints_of(cls)
    is_union = issubclass(cls, Union)
    fields = [
        (field.name, _shape(hints[field.name]), None if is_union else _default(field))
        for field in dataclasses.fields(cls)
    ]
    return cls.__name__, is_union, fields


@dataclasses.dataclass
class NodeSource:
    """A `torch.fx.traceback.NodeSource` as the JSON of a node's metadata "from_node" stores it."""

    name: str | None = None
    target: str | None = None
    graph_id: int | None = None
    pass_name: str | None = ""
    action: str = ""
    from_node: list[NodeSource] | None = None


TYPES = {
    name: value
    for name, value in vars(schema).items()
    if isinstance(value, type)
    and dataclasses.is_dataclass(value)
    and value.__module__ == schema.__name__
}
TYPES["NodeSource"] = NodeSource

SCHEMA = _native.Schema([describe(cls) for cls in TYPES.values()])

# The classes in the order of the native type numbers.
_BY_POSITION = [TYPES[name] for name in SCHEMA.type_names()]
_ENUMERATIONS = {
    cls: {name: members for name, hint in hints_of(cls).items() if (members := _members(hint))}
    for cls in _BY_POSITION
}
CLASSES = _native.SchemaClasses(SCHEMA, _BY_POSITION, _ENUMERATIONS, make_union_tag)

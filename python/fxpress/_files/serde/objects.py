"""Convert objects of torch's schema classes to and from dicts and JSON; compute canonical forms."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import types
import typing
from collections.abc import Sequence
from enum import Enum
from typing import Any

from fxpress._base.errors import UnsupportedError
from fxpress._files.format.fields import load_json
from fxpress._files.serde.damage import damage_is_named
from fxpress._files.serde.schema import CLASSES, SCHEMA, TYPES, hints_of
from fxpress._torch import serde as compat


class EnumEncoder(json.JSONEncoder):
    """Encode enums as their values, and bytes as base64.

    Stands in for `torch._export.serde.serialize.EnumEncoder`.
    """

    def default(self, o: Any) -> Any:
        if isinstance(o, Enum):
            return o.value
        if isinstance(o, bytes):
            return base64.b64encode(o).decode("utf-8")
        return super().default(o)


def _dataclass_to_dict(obj: Any) -> Any:
    """Replace dataclasses and unions in a value by dicts, and infinities and NaN by texts.

    Stands in for `torch._export.serde.serialize._dataclass_to_dict`.
    """
    if isinstance(obj, compat.Union):
        return {obj.type: _dataclass_to_dict(obj.value)}
    if dataclasses.is_dataclass(obj):
        return {f.name: _dataclass_to_dict(getattr(obj, f.name)) for f in dataclasses.fields(obj)}
    if isinstance(obj, list):
        return [_dataclass_to_dict(x) for x in obj]
    if isinstance(obj, tuple):
        return tuple(_dataclass_to_dict(x) for x in obj)
    if isinstance(obj, dict):
        return {k: _dataclass_to_dict(v) for k, v in obj.items()}
    if isinstance(obj, float) and not math.isfinite(obj):
        return "NaN" if math.isnan(obj) else "Infinity" if obj > 0 else "-Infinity"
    return obj


def _to_json_bytes(obj: Any) -> bytes:
    """Return the JSON of an object of the schema, or of any other dataclass.

    Stands in for `torch._export.serde.serialize._to_json_bytes`.
    """
    if type(obj) in TYPES.values():
        try:
            return CLASSES.write(obj)
        except TypeError:  # `obj` contains values that the schema lacks, such as bytes
            pass
    text = json.dumps(_dataclass_to_dict(obj), cls=EnumEncoder, allow_nan=False)
    return text.encode("utf-8")


def _resolve_schema_cls(cls: Any) -> Any:
    """Return the schema class of a name or forward reference; return an unknown name unchanged.

    Stands in for `torch._export.serde.serialize._resolve_schema_cls`.
    """
    if isinstance(cls, typing.ForwardRef):
        cls = cls.__forward_arg__
    return getattr(compat.schema, cls, cls) if isinstance(cls, str) else cls


def _dict_to_dataclass(cls: Any, data: Any) -> Any:
    """Return an object of a schema class from the result of `json.loads`.

    As in torch, keys that the class lacks are ignored.

    Stands in for `torch._export.serde.serialize._dict_to_dataclass`.

    Raises:
        AssertionError: the schema has no class of that name, or `data` does not fit a union.
    """
    cls = _resolve_schema_cls(cls)
    if isinstance(cls, str):
        raise AssertionError(f"Unresolved class type: '{cls}'.")
    origin, arguments = typing.get_origin(cls), typing.get_args(cls)
    if origin is typing.Annotated:
        return _dict_to_dataclass(arguments[0], data)
    if origin in (typing.Union, types.UnionType) and type(None) in arguments:
        if len(arguments) != 2:
            raise AssertionError(f"expected 2 type args, got {len(arguments)}")
        return None if data is None else _dict_to_dataclass(arguments[0], data)
    if isinstance(cls, type) and issubclass(cls, compat.Union):
        if not isinstance(data, dict) or len(data) != 1:
            raise AssertionError(f"expected a dict with one key for {cls.__name__}, got {data!r}")
        ((tag, value),) = data.items()
        if not isinstance(tag, str):
            raise AssertionError(f"expected str key, got {type(tag).__name__}")
        union: Any = cls
        return union.create(**{tag: _dict_to_dataclass(hints_of(union)[tag], value)})
    if dataclasses.is_dataclass(cls):
        record: Any = cls
        hints = hints_of(record)
        names = [f.name for f in dataclasses.fields(cls) if f.name in data]
        return record(**{name: _dict_to_dataclass(hints[name], data[name]) for name in names})
    if isinstance(data, list):
        return [_dict_to_dataclass(arguments[0], d) for d in data] if data else data
    if isinstance(data, dict):
        return {k: _dict_to_dataclass(arguments[1], v) for k, v in data.items()}
    return float(data) if cls is float else data


def _bytes_to_dataclass(cls: Any, artifact_bytes: bytes) -> Any:
    """Return an object of a schema class from JSON.

    Stands in for `torch._export.serde.serialize._bytes_to_dataclass`.

    Raises:
        fxpress.SerializeError: the text is not JSON or does not match the class. For a class of the
            schema, the message states the path of the wrong value.
        TypeError: `artifact_bytes` is not bytes.
    """
    if cls in TYPES.values():
        return SCHEMA.read(artifact_bytes, cls.__name__).field(CLASSES, "")
    if not isinstance(artifact_bytes, bytes):
        raise TypeError(f"expected bytes, got a {type(artifact_bytes).__name__}")
    with damage_is_named("the text"):
        return _dict_to_dataclass(cls, load_json(artifact_bytes))


def _refuse_unknown_fields() -> None:
    if SCHEMA.difference():
        raise UnsupportedError(
            f"the schema of this torch differs in {SCHEMA.difference()}, which the "
            "canonical form does not support"
        )


def canonicalize(ep: Any, constants: set[str] | None = None) -> Any:
    """Return the canonical form of a program.

    Programs that differ only in the names of values, the order of independent nodes and the
    metadata of nodes have equal canonical forms.

    Args:
        ep: an ExportedProgram of torch's schema, which is not modified.
        constants: the names of values that are constants instead of results of nodes.

    Returns:
        A new ExportedProgram of the schema. All names are replaced. torch leaves some unchanged:
        names inside dicts, and names of custom objects that are user inputs.

    Raises:
        AssertionError: `ep` is of a wrong class; or the graph has a cycle, uses an undefined name,
            defines a name twice, or has other numbers of inputs or outputs than the signature.
        KeyError: the signature has a name that the graph lacks.
        fxpress.UnsupportedError: the schema of this torch has fields that fxpress does not support.

    Stands in for `torch._export.serde.serialize.canonicalize`.

    Example:
        >>> from fxpress.serialize import ExportedProgramSerializer, canonicalize
        >>> stored = ExportedProgramSerializer().serialize(program).exported_program
        >>> type(canonicalize(stored)) is type(stored)
        True
    """
    _refuse_unknown_fields()
    if not isinstance(ep, compat.schema.ExportedProgram):
        raise AssertionError(f"expected ExportedProgram, got {type(ep).__name__}")
    made = SCHEMA.canonical(CLASSES, ep, constants or ())
    made.torch_version = ep.torch_version  # keep its type, a subclass of str
    return made


def _like(given: Sequence[Any], values: list[Any]) -> Sequence[Any]:
    return tuple(values) if isinstance(given, tuple) else values


def _canonicalize_graph(
    sorted_inputs: Sequence[Any], sorted_outputs: Sequence[Any], graph: Any, constants: set[str]
) -> tuple[Any, dict[str, str]]:
    """Return the canonical form of a graph, and a dict: old name of a value -> new name.

    Stands in for `torch._export.serde.serialize._canonicalize_graph`, which modifies its argument.

    Args:
        sorted_inputs, sorted_outputs: the inputs and outputs that replace the graph's.
        graph: a `schema.Graph`, which is not modified.
        constants: the names of values that are constants instead of results of nodes.
    """
    _refuse_unknown_fields()
    ordered = dataclasses.replace(graph, inputs=list(sorted_inputs), outputs=list(sorted_outputs))
    names: dict[str, str] = {}
    made = SCHEMA.canonical_graph(CLASSES, ordered, constants, names)
    made.inputs = _like(sorted_inputs, made.inputs)
    made.outputs = _like(sorted_outputs, made.outputs)
    return made, dict(sorted(names.items(), key=lambda item: int(item[1][1:])))

"""Describe operators, rare arguments and symbolic numbers to the native code in `csrc/serde`."""

from __future__ import annotations

import functools
import inspect
import json
import keyword
import operator
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar

import torch

from fxpress._base.errors import InternalError, UnsupportedError, is_about_input
from fxpress._torch import fx as torch_fx
from fxpress._torch import serde as compat
from fxpress._torch.versions import features

_T = TypeVar("_T")


class UnsupportedProgramError(UnsupportedError, compat.SerializeError):
    """fxpress cannot write or read a part of a program."""


class Kind(IntEnum):
    """The values of `OperatorKind` in `csrc/serde/operators.h`."""

    GETITEM = 0
    SYMBOLIC = 1
    SCHEMA = 2
    HIGHER_ORDER = 3
    SPECIAL = 4
    CALLABLE = 5
    UNSUPPORTED = 6


_TENSOR, _TENSOR_LIST, _OTHER = range(3)  # the values of `ReturnKind` in operators.h
_Argument = tuple[str, bool, bool, bool, Any]  # the fields of `OperatorArgument` in operators.h
# Fields of `Operator` in operators.h: kind, name, arguments, returns, is_allowed, is_functional,
# takes_numbers, constrains.
Described = tuple[int, str, tuple[_Argument, ...], tuple[int, ...], bool, bool, bool, bool]
# Operators that constrain symbols; see `Values.constrain`.
_CONSTRAINING = (compat.assert_scalar, torch.ops.aten.sym_constrain_range_for_size.default)


def operator_name(target: Any) -> str:
    """Return the name of an operator or function in a file; a str is returned unchanged."""
    if isinstance(target, str):
        return target
    module = target.__module__
    if module.startswith(compat.OPS):
        module = "torch.ops" + module.removeprefix(compat.OPS)
    return f"{module}.{target.__name__}"


def cached_if_permanent(describe: Callable[[Any], _T]) -> Callable[[Any], _T]:
    """Decorate a function that takes an operator: cache the results for operators of torch."""
    known: dict[Any, _T] = {}

    @functools.wraps(describe)
    def cached(target: Any) -> _T:
        # Only these operators are never redefined.
        if not isinstance(target, torch_fx.OpOverload) or target.namespace not in ("aten", "prims"):
            return describe(target)
        if target not in known:
            known[target] = describe(target)
        return known[target]

    return cached


def schema_of(target: Any) -> Any:
    """Return the schema of an overload or of a registered extension's operator, or None."""
    if isinstance(target, torch_fx.OpOverload):
        return compat.schema_of(target)
    handler = compat.EXTENSIONS.get(type(target))
    return None if handler is None else handler.op_schema(target)


def _return_kind(declared: Any) -> int:
    if isinstance(declared, torch.TensorType):
        return _TENSOR
    if isinstance(declared, torch.ListType) and isinstance(
        declared.getElementType(), torch.TensorType
    ):
        return _TENSOR_LIST
    return _OTHER


def _parameter(name: str) -> _Argument:
    return name, False, True, False, None


def _with_schema(name: str, schema: Any, target: Any = None) -> Described:
    arguments = tuple(
        (a.name, a.kwarg_only, not a.has_default_value(), keyword.iskeyword(a.name), a.type)
        for a in schema.arguments
    )
    returns = tuple(_return_kind(r.real_type) for r in schema.returns)
    is_overload = not name.startswith("#")  # torch's verifier decides about operators of extensions
    functional = is_overload and not schema.is_mutable
    return (
        Kind.SCHEMA,
        name,
        arguments,
        returns,
        is_overload,
        functional,
        target is torch.ops.aten.item.default,
        target in _CONSTRAINING,
    )


def _extension_name(target: Any) -> str:
    handler = compat.EXTENSIONS[type(target)]
    namespace, name = handler.namespace(), handler.to_op_name(target)
    for part in (namespace, name):
        if not isinstance(part, str):
            raise AssertionError(f"expected a str, got {type(part).__name__}")
        if ":" in part:
            raise AssertionError(f"{part!r} must not contain ':'")
    return f"#{namespace}:{name}"


def described_kind(kind: Kind, name: str = "", *, allowed: bool = False) -> Described:
    """Return the `Described` of an operator that does not have a schema."""
    return kind, name, (), (), allowed, allowed, kind is Kind.SYMBOLIC, False


def is_getitem(target: Any) -> bool:
    """Return whether a target is getitem; getitem nodes are written with the node they unpack."""
    return target is operator.getitem


def _symbolic(target: Any) -> Described:
    names = tuple(map(_parameter, inspect.signature(target).parameters))
    allowed = not inspect.isbuiltin(target) or target in compat.allowed_builtins()
    return Kind.SYMBOLIC, operator_name(target), names, (), allowed, allowed, True, False


def describe_symbolic(target: Any) -> Described:
    """Return the `Described` of a function on numbers; AssertionError for other functions."""
    if isinstance(target, torch_fx.OpOverload):
        names = tuple(_parameter(a.name) for a in compat.schema_of(target).arguments)
        return Kind.SYMBOLIC, operator_name(target), names, (), True, True, True, False
    if not compat.is_sym_op(target):
        raise AssertionError(f"op {target} is not in _SYM_OPS")
    return _symbolic(target)


def describe_call(target: Any, args: Any) -> Described:
    """Return the `Described` of an operator with a schema, in a call with `args`."""
    if isinstance(target, compat.CallTorchBind):
        return _with_schema("", target.schema(args[0], args[1]))
    schema = schema_of(target)
    if schema is None:
        raise AssertionError(
            "expected OpOverload or registered extension type, got " + type(target).__name__
        )
    return _with_schema("", schema)


@cached_if_permanent
def describe_operator(target: Any) -> Described:
    """Return the `Described` of an operator."""
    if is_getitem(target):
        return described_kind(Kind.GETITEM, allowed=True)
    if compat.is_sym_op(target):
        return _symbolic(target)
    if isinstance(target, torch_fx.OpOverload):
        return _with_schema(operator_name(target), compat.schema_of(target), target)
    if isinstance(target, torch_fx.HigherOrderOperator):
        kind = Kind.SPECIAL if target in compat.SPECIAL_OPERATORS else Kind.HIGHER_ORDER
        return described_kind(kind, operator_name(target), allowed=True)
    if type(target) in compat.EXTENSIONS:
        return _with_schema(_extension_name(target), schema_of(target))
    if callable(target):
        return described_kind(Kind.CALLABLE, operator_name(target))
    return described_kind(Kind.UNSUPPORTED)


def empty_list_tag(declared: Any) -> str:
    """Return the field of `schema.Argument` for an empty list of the type `declared`."""
    if declared is None:
        return "as_tensors"
    if isinstance(declared, torch.OptionalType):
        declared = declared.getElementType()
    if not isinstance(declared, torch.ListType):
        raise AssertionError(f"expected ListType, got {type(declared).__name__}")
    element = declared.getElementType()
    if isinstance(element, torch.OptionalType):
        element = element.getElementType()
    for kind, tag in (
        (torch.BoolType, "as_bools"),
        (torch.IntType, "as_ints"),
        (torch.FloatType, "as_floats"),
        (torch.StringType, "as_strings"),
        (torch.TensorType, "as_tensors"),
    ):
        if isinstance(element, kind):
            return tag
    if isinstance(element, torch.ListType) and features.empty_lists_of_lists:
        inner = element.getElementType()
        if isinstance(inner, torch.IntType):
            return "as_int_lists"
        if isinstance(inner, torch.FloatType):
            return "as_float_lists"
        raise compat.SerializeError(f"Empty list with nested type {element} nyi.")
    raise compat.SerializeError(f"Empty list with type {element} nyi.")


def symbolic(value: Any, texts: dict[Any, str]) -> int | float | bool | tuple[str, Any]:
    """Return the value of a symbolic number if it is a constant, else (`srepr`, hint or None).

    `texts` is a cache: expression -> `srepr`.
    """
    if isinstance(value, torch.SymInt):
        if compat.is_concrete_int(value):
            return int(value)
    elif isinstance(value, torch.SymFloat):
        if compat.is_concrete_float(value):
            return float(value)
    elif isinstance(value, torch.SymBool):
        if compat.is_concrete_bool(value):
            return bool(value)
    else:
        raise compat.SerializeError(f"expected a symbolic number, got {value!r}")
    expression = value.node.expr
    text = texts.get(expression)
    if text is None:
        import sympy

        text = texts[expression] = sympy.printing.repr.srepr(expression)
    return text, None if isinstance(value, torch.SymBool) else value.node.hint


def other_argument(value: Any, objects: dict[str, Any]) -> tuple[str, ...]:
    """Return (field of `schema.Argument`, text); for a custom object, also its class's name.

    Native code calls this function for arguments that it does not write itself.
    """
    if isinstance(value, (torch_fx.OpOverload, torch_fx.HigherOrderOperator)):
        return "as_operator", operator_name(value)
    if isinstance(value, torch.SymInt):
        return "as_sym_int", str(value)
    if isinstance(value, torch.SymFloat):
        return "as_sym_float", str(value)
    if isinstance(value, compat.ScriptObject):
        if not (value._has_method("__getstate__") and value._has_method("__setstate__")):
            raise compat.SerializeError(
                f"Unable to serialize custom class {value}. Please define serialization methods "
                "via def_pickle()."
            )
        return _object(value, value._type().qualified_name(), objects)
    if torch_fx.is_opaque_value(value):
        return _object(value, compat.get_opaque_type_name(type(value)), objects)
    inductor = sys.modules.get(compat.INDUCTOR)
    if inductor is not None:
        if isinstance(value, (inductor.Buffer, inductor.ReinterpretView)):
            return "as_tensor", _buffer_name(value)
        if isinstance(value, inductor.TorchBindObject):
            held = value.get_real_obj()
            objects[_buffer_name(value)] = held
            return "as_custom_obj", _buffer_name(value), held._type().qualified_name()
    raise compat.SerializeError(f"Unsupported argument type: {type(value)}")


def _object(value: Any, class_name: str, objects: dict[str, Any]) -> tuple[str, str, str]:
    name = f"_custom_obj_{len(objects)}"
    objects[name] = value
    return "as_custom_obj", name, class_name


def _buffer_name(value: Any) -> str:
    name = value.get_name()
    if name is None:
        raise AssertionError("Buffer must have valid name")
    return str(name)


def other_list(values: Any) -> tuple[bool, list[str | None]]:
    """Return whether a list of Inductor's buffers contains None, and the name of each buffer."""
    inductor = sys.modules.get(compat.INDUCTOR)
    if inductor is not None:
        buffers = (inductor.Buffer, inductor.ReinterpretView)
        if all(isinstance(value, (*buffers, type(None))) for value in values):
            names = [None if value is None else _buffer_name(value) for value in values]
            return None in names, names
    raise compat.SerializeError(
        f"Unsupported list/tuple argument type: {[type(value) for value in values]}"
    )


def module_argument(attribute: Any, name: str) -> str:
    """Return the text for an argument that is a module lowered to a backend."""
    if type(attribute).__name__ != "LoweredBackendModule":
        raise compat.SerializeError(
            f"Unsupported getattr attribute {name} with type: {type(attribute)}"
        )
    parts = []
    for part in ("module_name", "backend_id"):
        value = getattr(attribute, part, None)
        if value is None:
            raise AssertionError(f"{part} should not be None")
        parts.append(value)
    return "-".join(parts)


def dumps(value: Any, node: torch.fx.Node) -> str:
    """Return the "custom" metadata of a node as JSON; SerializeError if that is impossible."""
    try:
        return json.dumps(value)
    except Exception as e:
        raise compat.SerializeError(
            f"Failed to serialize custom metadata for node {node.name} with error {e}"
        ) from e


def node_failed(node: torch.fx.Node, error: Exception) -> None:
    """Raise a SerializeError that names the node; reraise errors that the node did not cause."""
    if isinstance(error, (UnsupportedError, InternalError)) or not is_about_input(error):
        raise error
    text = "".join(traceback.format_exception(error))
    raise compat.SerializeError(
        f"Failed serializing node {node} in graph: {node.format_node()}\n Original exception {text}"
    ) from error


def register_extension(op_type: type[Any], extension_handler: type[Any]) -> None:
    """Register, in fxpress and in torch, a handler that writes and reads operators of a type.

    Args:
        op_type: the type of the operators, from a module outside of torch and builtins.
        extension_handler: a subclass of `ExtensionHandler` with a unique namespace.

    Raises:
        AssertionError: the type or the namespace is registered already, `op_type` is not a type or
            comes from torch or builtins, or `extension_handler` is not an `ExtensionHandler`.
        TypeError: `extension_handler` is not a class.

    Stands in for `torch._export.serde.serialize.register_extension`.

    Example:
        >>> from fxpress.serialize import ExtensionHandler, register_extension
        >>> class Kernel:
        ...     __module__ = "mine"
        >>> class Handler(ExtensionHandler):
        ...     namespace = classmethod(lambda cls: "mine")
        ...     to_op_name = classmethod(lambda cls, operator: operator.name)
        ...     from_op_name = classmethod(lambda cls, name: Kernel())
        >>> register_extension(Kernel, Handler)
        >>> register_extension(Kernel, Handler)
        Traceback (most recent call last):
            ...
        AssertionError: <class 'mine.Kernel'> is already registered.
    """
    if not issubclass(extension_handler, compat.ExtensionHandler):
        raise AssertionError(f"Expected ExtensionHandler, got {extension_handler}.")
    if op_type in compat.EXTENSIONS:
        raise AssertionError(f"{op_type} is already registered.")
    if not isinstance(op_type, type):
        raise AssertionError(f"op_type must be a type, got {type(op_type).__name__}")
    if op_type.__module__.startswith(("torch", "builtins")):
        raise AssertionError(
            f"op_type module {op_type.__module__} should not start with 'torch' or 'builtins'"
        )
    namespace = extension_handler.namespace()
    if namespace in compat.EXTENSION_NAMESPACES:
        raise AssertionError(f"namespace {namespace!r} is already registered")
    compat.EXTENSIONS[op_type] = extension_handler
    compat.EXTENSION_NAMESPACES[namespace] = extension_handler


def _registered_extension_types() -> tuple[type[Any], ...]:
    """Return the types of operators that have a registered handler.

    Stands in for `torch._export.serde.serialize._registered_extension_types`.
    """
    return tuple(compat.EXTENSIONS)


def _get_schema_from_target(target: Any) -> Any:
    """Return the schema of an overload or of a registered extension's operator.

    Stands in for `torch._export.serde.serialize._get_schema_from_target`.

    Raises:
        RuntimeError: `target` does not have a schema.
    """
    schema = schema_of(target)
    if schema is None:
        raise RuntimeError(f"Cannot find schema for {type(target)}")
    return schema

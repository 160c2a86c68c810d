"""Convert numbers, devices, tensor metadata and ranges to and from objects of torch's schema.

Most functions replace the functions with the same names in `torch._export.serde.serialize`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from fxpress._files.serde.schema import CLASSES, SCHEMA
from fxpress._torch import serde as compat

log = logging.getLogger("fxpress")
_schema = compat.schema


def deserialize_device(d: Any) -> torch.device:
    """Return the device that a `schema.Device` names; RuntimeError for an unknown type."""
    return torch.device(d.type) if d.index is None else torch.device(d.type, d.index)


def deserialize_storage_offset(offset: Any) -> int:
    """Return the number in a `schema.SymInt`; AssertionError if it is symbolic."""
    if offset.type != "as_int":
        raise AssertionError(f"Only as_int is supported, got {offset.type}")
    return int(offset.as_int)


def deserialize_size(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Return the numbers in a list of `schema.SymInt`; AssertionError if one is symbolic."""
    return tuple(map(deserialize_storage_offset, sizes))


def deserialize_stride(strides: Sequence[Any]) -> tuple[int, ...]:
    """Return the numbers in a list of `schema.SymInt`; AssertionError if one is symbolic."""
    return deserialize_size(strides)


def deserialize_scalar_type(st: Any) -> torch.dtype:
    """Return the dtype of a `schema.ScalarType` or its number; KeyError for an unknown number."""
    return compat.DTYPES[st]


def _print_sympy(s: Any) -> str:
    """Return the `srepr` text of a symbolic number or a sympy expression."""
    expression = s.node.expr if isinstance(s, compat.SYMBOLIC_NUMBERS) else s
    return str(sympy.printing.repr.srepr(expression))


def _serialize_number(
    value: Any, kinds: tuple[type[Any], ...], is_concrete: Any, union: Any, kind: type[Any]
) -> Any:
    """Wrap a number, or an expression with its hint, in `union`, such as `schema.SymInt`."""
    if not isinstance(value, kinds):
        name = union.__name__
        raise compat.SerializeError(
            f"{name} should be either symbol or {kind.__name__}, got `{value}` of type "
            f"`{type(value)}`"
        )
    if is_concrete(value):
        return union.create(**{f"as_{kind.__name__}": kind(value)})
    hint = None if kind is bool else value.node.hint
    if hint is not None:
        hint = _schema.SymExprHint.create(**{f"as_{kind.__name__}": hint})
    return union.create(as_expr=_schema.SymExpr(_print_sympy(value), hint=hint))


def serialize_sym_int(s: Any) -> Any:
    """Return the `schema.SymInt` of an int or `torch.SymInt`.

    Raises:
        AssertionError: `s` is a sympy symbol; torch raises this error, too.
        SerializeError: `s` is of another type.
    """
    kinds = (torch.SymInt, sympy.Symbol, int)
    return _serialize_number(s, kinds, compat.is_concrete_int, _schema.SymInt, int)


def serialize_sym_float(s: Any) -> Any:
    """Return the `schema.SymFloat` of a float or `torch.SymFloat`.

    Raises:
        AssertionError: `s` is a sympy symbol; torch raises this error, too.
        SerializeError: `s` is of another type.
    """
    kinds = (torch.SymFloat, sympy.Symbol, float)
    return _serialize_number(s, kinds, compat.is_concrete_float, _schema.SymFloat, float)


def serialize_sym_bool(s: Any) -> Any:
    """Return the `schema.SymBool` of a bool or `torch.SymBool`; SerializeError for other types."""
    kinds = (torch.SymBool, bool)
    return _serialize_number(s, kinds, compat.is_concrete_bool, _schema.SymBool, bool)


def serialize_tensor_meta(t: torch.Tensor) -> Any:
    """Return the `schema.TensorMeta` of a tensor."""
    return SCHEMA.read(SCHEMA.encode_tensor_meta(t), "TensorMeta").field(CLASSES, "", True)


_ROUNDING = {"ceil": math.ceil, "floor": math.floor}


def _sympy_int_to_int(val: Any, adjust: str) -> int | None:
    """Return a limit of a range as a file stores it; an infinite limit is None.

    Args:
        val: the limit, a number of sympy.
        adjust: how to round a limit that is not an integer: "ceil" or "floor". The function logs a
            warning if it rounds.

    Raises:
        RuntimeError: the limit needs rounding, and `adjust` is neither "ceil" nor "floor".
    """
    if val in (sympy.oo, compat.int_oo, -sympy.oo, -compat.int_oo):
        return None
    if isinstance(val, sympy.Integer):
        return int(val)
    log.warning(
        "Export constraints cannot be non-integer expressions. Found type %s, and value %s. "
        "We will attempt to %s this value.",
        type(val),
        val,
        adjust,
    )
    if adjust not in _ROUNDING:
        raise RuntimeError(f"Got invalid adjustment {adjust}")
    return int(_ROUNDING[adjust](val))


def _int_to_sympy_int(val: Any, default: Any) -> Any:
    """Return the sympy number for a stored limit; `default` for None."""
    if val is None:
        return default
    if val in (compat.int_oo, -compat.int_oo):
        return val
    if val in (math.inf, -math.inf):
        return compat.int_oo if val > 0 else -compat.int_oo
    return sympy.Integer(val)


def value_range(lowest: Any, highest: Any) -> Any:
    """Return torch's `ValueRanges` of a stored range, in which None means infinity."""
    return compat.ValueRanges(
        _int_to_sympy_int(lowest, -compat.int_oo), _int_to_sympy_int(highest, compat.int_oo)
    )


def deserialize_range_constraints(
    ranges: Mapping[str, Any], symbols: Mapping[str, Any]
) -> dict[Any, Any]:
    """Return symbol -> range; log a warning for a name that does not have a symbol."""
    constraints = {}
    for name, limits in ranges.items():
        symbol = symbols.get(name)
        if symbol is not None:
            constraints[symbol] = limits
        else:
            log.warning("Symbol %s did not appear in the graph that was deserialized", name)
    return constraints


def serialize_range_constraints(range_constraints: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a dict: the name of a symbol -> its `schema.RangeConstraint`."""
    return {
        str(symbol): _schema.RangeConstraint(
            _sympy_int_to_int(limits.lower, "ceil"), _sympy_int_to_int(limits.upper, "floor")
        )
        for symbol, limits in range_constraints.items()
    }


def _symbol_index(sym: Any, sym_type: Any) -> int:
    """Return the number in the name of a symbol, such as 12 for "u12"."""
    return int(str(sym).removeprefix(compat.prefix_str[sym_type]))


def _reverse_map(d: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return member.value -> key, for a dict whose values are enum members."""
    return {member.value: key for key, member in d.items()}

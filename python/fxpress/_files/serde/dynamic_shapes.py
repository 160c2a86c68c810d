"""Convert specifications of dynamic shapes to and from plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NoReturn

import sympy
import torch
from torch.export import Dim

from fxpress._files.serde import expressions
from fxpress._files.serde.bounded_functions import ExpressionError
from fxpress._files.serde.limits import LimitError
from fxpress._torch import serde as compat

_HINTS = {
    f"_DimHint.{name}": getattr(compat.DimHint, name) for name in ("AUTO", "DYNAMIC", "STATIC")
}


def _invalid(message: str) -> NoReturn:
    raise compat.UserError(compat.INVALID_INPUT, message)


def _list_dimensions(path: Any, value: Any, shape: Any) -> list[Any] | None:
    """Return one entry per dimension of a tensor; None for other values."""
    if not isinstance(value, torch.Tensor):
        return None
    if shape is None:
        return [Dim.STATIC] * value.dim()
    given = shape if isinstance(shape, dict) else dict(enumerate(shape))
    entries = ((given.get(i), size) for i, size in enumerate(value.shape))
    return [size if entry is None else entry for entry, size in entries]


def _note(entry: Any, roots: dict[str, tuple[Any, set[str]]]) -> int | str | None:
    """Return a dimension's entry in a specification as plain data; add its `Dim` to `roots`."""
    if entry is None or isinstance(entry, int):
        return entry
    if isinstance(entry, compat.DimHint):
        return f"{type(entry).__name__}.{entry.type.name}"
    is_derived = isinstance(entry, compat.DerivedDim)
    root = entry.root if is_derived else entry
    _, derived = roots.setdefault(root.__name__, (root, set()))
    if is_derived:
        derived.add(entry.__name__)
    return str(entry.__name__)


def _dump_dynamic_shapes(
    dynamic_shapes: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    to_dict: bool | None = False,
) -> Any:
    """Return a specification of dynamic shapes as plain data.

    Args:
        dynamic_shapes: the specification for `torch.export.export`. A dict counts as the tuple of
            its values.
        args, kwargs: the example inputs that the specification describes.
        to_dict: return nested dicts instead of a `DynamicShapesSpec`.

    Returns:
        A `DynamicShapesSpec` with two fields. "dynamic_shapes" is a tuple with an item for each
        input. The item is a list for a tensor, and None for another input. The list has an item for
        each dimension: a size, or the name of a `Dim` or of a hint. "dims" maps each symbol to its
        limits, and to the expressions that are derived from the symbol. If `dynamic_shapes` is
        None, the result is always a dict, as in torch.

    Raises:
        UserError (of Dynamo): the specification does not fit the inputs.

    Stands in for `torch._export.serde.dynamic_shapes._dump_dynamic_shapes`.
    """
    if dynamic_shapes is None:
        return {"dynamic_shapes": None, "dims": {}}
    given = dynamic_shapes.values() if isinstance(dynamic_shapes, Mapping) else dynamic_shapes
    shapes = tuple(given)
    inputs = (*args, *(kwargs or {}).values())
    compat.check_dynamic_shapes(dict(enumerate(inputs)), shapes)
    standard = compat.tree_map_with_path(_list_dimensions, inputs, shapes, tree_name="inputs")
    roots: dict[str, tuple[Any, set[str]]] = {}
    plain = compat.tree_map(lambda entry: _note(entry, roots), standard)
    dims = {
        name: compat.RootDim(
            min=root.min,
            max=None if root.max is compat.int_oo else root.max,
            derived=sorted(derived),
        )
        for name, (root, derived) in sorted(roots.items(), key=lambda item: item[0])
    }
    if to_dict:
        return {
            "dynamic_shapes": plain,
            "dims": {name: dataclasses.asdict(dim) for name, dim in dims.items()},
        }
    return compat.DynamicShapesSpec(dynamic_shapes=plain, dims=dims)


def _check_root(name: Any, stored: Any) -> Any:
    if not isinstance(name, str):
        _invalid(f"Expected `spec['dims']` keys to be strings for symbols, got key {type(name)}")
    if not isinstance(stored, dict) or sorted(stored) != ["derived", "max", "min"]:
        _invalid(
            "Expected `spec['dims']` values to have keys `derived`, `max`, and `min`, "
            f"instead found {stored.keys() if isinstance(stored, dict) else stored}"
        )
    if not isinstance(stored["min"], int):
        _invalid(
            f"Expected dims in `spec['dims']` to map `min` to an int, got {name}: {stored['min']}"
        )
    if not isinstance(stored["max"], int | None):
        _invalid(
            "Expected dims in `spec['dims']` to map `max` to an int or None, "
            f"got {name}: {stored['max']}"
        )
    derived = stored["derived"]
    if not isinstance(derived, list) or not all(isinstance(d, str) for d in derived):
        _invalid(
            "Expected dims in `spec['dims']` to map `derived` to a list of derived expressions, "
            f"got {name}: {derived}"
        )
    return compat.RootDim(**stored)


def _read(spec: Any, from_dict: bool) -> tuple[Any, dict[str, Any]]:
    """Return the shapes of a specification, and name -> `RootDim`."""
    if not from_dict:
        if not isinstance(spec, compat.DynamicShapesSpec):
            _invalid(f"Expected `spec` to be a DynamicShapesSpec, got {type(spec)}")
        return spec.dynamic_shapes, spec.dims
    if not isinstance(spec, dict):
        _invalid(f"With from_dict=True, expected `spec` to be a dict, got {type(spec)}")
    if sorted(spec, key=str) != ["dims", "dynamic_shapes"]:
        _invalid(
            "With from_dict=True, expected `spec` to have keys `dims` and `dynamic_shapes`, "
            f"instead found {spec.keys()}"
        )
    dims = {name: _check_root(name, stored) for name, stored in spec["dims"].items()}
    return spec["dynamic_shapes"], dims


def _parse(text: str) -> Any:
    try:
        return expressions.parse(text, {})
    except (ExpressionError, LimitError) as e:
        _invalid(str(e))


def _derive(root: Any, symbol: Any, text: str) -> Any:
    """Return the dimension that an expression derives from `root`."""
    expression = _parse(text)
    if expression.free_symbols != {symbol}:
        _invalid(
            f"Expected derived expressions in to have {symbol} as the only free symbol, "
            f"got {expression}"
        )
    if not compat.is_supported_equivalence(expression):
        _invalid(f"Expected derived expressions to be linear expressions, got {expression}")
    modulus, remainder = sympy.div(expression, symbol)
    dim = root if modulus == 1 else int(modulus) * root
    return dim if remainder == 0 else dim + int(remainder)


def _load_dynamic_shapes(spec: Any, from_dict: bool | None = False) -> Any:
    """Return the specification for `torch.export.export` that `_dump_dynamic_shapes` wrote.

    Args:
        spec: a `DynamicShapesSpec`; a dict if `from_dict` is true.
        from_dict: whether `spec` is a dict.

    Raises:
        UserError (of Dynamo): `spec` is malformed, or names unknown dimensions.

    Stands in for `torch._export.serde.dynamic_shapes._load_dynamic_shapes`.
    """
    shapes, roots = _read(spec, bool(from_dict))
    if shapes is None:
        return None
    dims: dict[str, Any] = {}
    for name, stored in roots.items():
        symbol = _parse(name)
        if not isinstance(symbol, sympy.Symbol):
            _invalid(f"Expected `spec['dims']` keys to be symbols, got {name}")
        dims[name] = Dim(name, min=stored.min, max=stored.max)
        for text in stored.derived:
            dims[text] = _derive(dims[name], symbol, text)

    def entry(value: Any) -> Any:
        if value is None or isinstance(value, int):
            return value
        if not isinstance(value, str):
            _invalid(
                "Expected leaves in `spec['dynamic_shapes']` to be ints, None, Dim.AUTO/STATIC, "
                f"symbols,  or derived expressions, got {value}"
            )
        if value in _HINTS:
            return _HINTS[value]()
        if value not in dims:
            _invalid(
                "Expected dims in `spec['dynamic_shapes']` to be tracked in `spec['dims']`, "
                f"got {value} which is not in {roots.keys()}"
            )
        return dims[value]

    return compat.tree_map(entry, shapes)

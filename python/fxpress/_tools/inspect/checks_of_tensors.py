"""Look for tensors that cannot be."""

from __future__ import annotations

from typing import Any

from fxpress._files.format.dtypes import BY_NUMBER
from fxpress._files.format.fields import a_list, an_int, an_object, one_of
from fxpress._files.format.tensors import dtype_of
from fxpress._tools.inspect.findings import Found

_STRIDED, _LAYOUTS = 7, 8  # torch's numbers in files
_MOST_DIMENSIONS = 64
_MOST_BYTES = 1 << 63
_DEVICES_OF_A_KIND = 1 << 15
_DEVICES = frozenset(
    (
        *("cpu", "cuda", "ipu", "xpu", "mkldnn", "opengl", "opencl", "ideep", "hip", "ve", "fpga"),
        *("maia", "xla", "lazy", "vulkan", "mps", "meta", "hpu", "mtia", "privateuseone"),
    )
)


def check_tensor(meta: dict[str, Any]) -> Found:
    """Yield what is wrong with the `TensorMeta` of a value in a graph.

    Raises:
        KeyError, TypeError, ValueError: a field is damaged.
    """
    yield from check_type(meta)
    layout, index = an_int(meta["layout"]), an_object(meta["device"]).get("index")
    if not 0 <= layout < _LAYOUTS:
        yield f"{layout} is the number of no layout", False
    if index is not None and not -1 <= an_int(index) < _DEVICES_OF_A_KIND:
        yield f"{index} is the number of no device", False
    sizes, strides = ([_known(n) for n in a_list(meta[key])] for key in ("sizes", "strides"))
    start = _known(meta["storage_offset"])
    if len(sizes) > _MOST_DIMENSIONS:
        yield f"it has {len(sizes)} dimensions", False
    if layout != _STRIDED:
        return
    if len(sizes) != len(strides):
        yield f"it has {len(sizes)} sizes and {len(strides)} strides", False
    elif any(n is not None and n < 0 for n in (*sizes, *strides, start)):
        yield "it has a negative size, stride or offset", False
    elif None not in (*sizes, *strides, start):
        pairs = zip(sizes, strides, strict=True)
        last = sum((size - 1) * stride for size, stride in pairs if size and stride)
        if ((start or 0) + last + 1) * dtype_of(an_int(meta["dtype"]))[1] >= _MOST_BYTES:
            yield "its sizes, strides or offset are too large", False


def check_type(meta: dict[str, Any]) -> Found:
    """Yield what is wrong with the type and the device of a `TensorMeta`.

    Raises:
        KeyError, TypeError: a field is damaged.
    """
    number = an_int(meta["dtype"])
    name, _ = dtype_of(number)
    if number and number not in BY_NUMBER:
        yield f"{number} is the number of no type", False
    elif meta["requires_grad"] and not name.startswith(("float", "complex", "bfloat")):
        yield f"a tensor of {name} requires a gradient", False
    kind = an_object(meta["device"])["type"]
    if kind not in _DEVICES:
        yield f"{kind!r} is a kind of device that a library has to bring", True


def _known(size: Any) -> int | None:
    """Return a size; None for an expression."""
    kind, value = one_of(size)
    return an_int(value) if kind == "as_int" else None

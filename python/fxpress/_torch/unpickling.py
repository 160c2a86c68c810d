"""Unpickle with torch's weights-only unpickler, and check the tensors of a file."""

from __future__ import annotations

import functools
import io
import pickle
import types
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import _weights_only_unpickler, serialization
from torch._export.serde import serialize as torch_serialize
from torch.nested._internal import nested_tensor

from fxpress import _native
from fxpress._torch.serde import reconstruct_fake_tensor


def unpickle_with(function: Callable[..., Any], file: io.BytesIO, location: Any = None) -> Any:
    """Return `torch.load(file, location, weights_only=False)`; `function` builds fake tensors."""

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if (module, name) == (torch_serialize.__name__, reconstruct_fake_tensor.__name__):
                return function
            return super().find_class(module, name)

    pickles = types.SimpleNamespace(__name__="fxpress", Unpickler=Reader, load=pickle.load)
    return torch.load(file, location, pickle_module=pickles, weights_only=False)


class InvalidTensorError(ValueError):
    """A tensor exceeds its storage, or its indices or offsets point outside of its values."""


def _within_storage(rebuild: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `rebuild` to raise if a tensor exceeds its storage; torch would enlarge the storage."""

    has_dtype = rebuild is torch._utils._rebuild_tensor_v3

    def checked(storage: Any, offset: Any, sizes: Any, strides: Any, *others: Any) -> Any:
        dtype = others[2] if has_dtype else storage.dtype
        needed = _native.bytes_needed(sizes, strides, offset, dtype.itemsize)
        available = storage._untyped_storage.nbytes()
        if needed is None or needed > available:
            raise InvalidTensorError(f"a tensor exceeds its storage of {available} bytes")
        return rebuild(storage, offset, sizes, strides, *others)

    return checked


_Charge: TypeAlias = Callable[[int], None]  # counts bytes before they are allocated; may raise
_ROW_BYTES = 100  # memory for each offset of a nested tensor: its copy, and ints for the check


def _valid_sparse_tensor(charge: _Charge, layout: Any, data: tuple[Any, ...]) -> torch.Tensor:
    """Return a checked sparse tensor from a file, for the arguments of `_rebuild_sparse_tensor`."""
    # torch's own check depends on a global flag and a global list, which other threads may reset.
    is_coo = layout is torch.sparse_coo
    *indices, values, size = data[:3] if is_coo else data
    is_coalesced = data[3] if is_coo and len(data) > 3 else None  # absent in older files
    for each in indices:
        charge(each.nbytes)  # an expanded tensor has more elements than its storage
    try:
        if is_coo:
            made = torch.sparse_coo_tensor(*indices, values, size, is_coalesced=is_coalesced)
            torch._validate_sparse_coo_tensor_args(
                *indices, values, size, is_coalesced, check_pinning=False
            )
        else:
            made = torch.sparse_compressed_tensor(*indices, values, size, layout=layout)
            torch._validate_sparse_compressed_tensor_args(
                *indices, values, size, layout, check_pinning=False
            )
    except RuntimeError as e:
        raise InvalidTensorError(f"a sparse tensor has wrong indices: {e}") from e
    return made


_NESTED = object()  # replaces the class NestedTensor, which a pickle could call without our checks


def _moved_tensor(charge: _Charge, data: Any, dtype: Any, *others: Any) -> torch.Tensor:
    """Charge the bytes that `_rebuild_device_tensor_from_cpu_tensor` allocates, and call it."""
    charge(data.numel() * dtype.itemsize)
    made: torch.Tensor = torch._utils._rebuild_device_tensor_from_cpu_tensor(data, dtype, *others)
    return made


def _rebuild_with_state(
    nested: Callable[..., Any], function: Any, cls: Any, arguments: Any, state: Any
) -> Any:
    """Replace torch's `_rebuild_from_type_v2`: return a tensor with attributes from a file."""
    if function is not nested or cls is not _NESTED:
        return torch._tensor._rebuild_from_type_v2(function, cls, arguments, state)
    made = nested(*arguments)
    own = {name: value for name, value in state.items() if name not in vars(made)}
    return torch._utils._set_obj_state(made, own)


def _nested_tensor(charge: _Charge, given: dict[str, Any]) -> nested_tensor.NestedTensor:
    """Return a checked nested tensor. Its parts are copies, because a pickle could change them."""
    values, offsets, lengths = (given[name] for name in ("values", "offsets", "lengths"))
    dimension = given["_ragged_idx"]
    charge(_ROW_BYTES * (offsets.numel() + (0 if lengths is None else lengths.numel())))
    offsets, lengths = offsets.clone(), lengths if lengths is None else lengths.clone()
    made = nested_tensor.NestedTensor(
        values.detach(),
        offsets,
        lengths=lengths,
        _ragged_idx=dimension,
        _metadata_cache=dict(given["_metadata_cache"]),
        requires_grad=given["requires_grad"],
    )
    if offsets.is_meta:
        return made
    starts, rows = offsets.tolist(), (offsets.diff() if lengths is None else lengths).tolist()
    size = values.shape[dimension - 1]
    is_inside = all(
        start >= 0 and 0 <= row <= size - start for start, row in zip(starts, rows, strict=False)
    )
    if not is_inside or len(starts) != len(rows) + 1 or offsets.is_floating_point():
        raise InvalidTensorError("a nested tensor has offsets that do not fit its values")
    for name, limit in (("min_seqlen", min), ("max_seqlen", max)):
        known = made._metadata_cache.get(name)
        if known is not None and tuple(known.shape) != (limit(rows, default=0), 0):
            raise InvalidTensorError(f"a nested tensor has a {name} that does not fit its offsets")
    return made


@functools.lru_cache(maxsize=1)
def _allowed_globals() -> dict[str, Any]:
    """Return torch's table of allowed globals, with our functions that check tensors."""
    table = {
        name: value
        for name, value in _weights_only_unpickler._get_allowed_globals().items()
        if not (value in torch._tensor_classes and "sparse" in value.__module__)
    }
    for name in ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor"):
        table[f"torch._utils.{name}"] = _within_storage(getattr(torch._utils, name))
    table[f"{nested_tensor.__name__}.NestedTensor"] = _NESTED
    return table


def load_with(function: Callable[..., Any], archive: Any, location: Any, charge: _Charge) -> Any:
    """Return `torch.load(archive, location, weights_only=True)`; `function` builds fake tensors.

    `charge` is called with the bytes that torch's functions allocate besides the file's storages.
    """
    name = f"{torch_serialize.__name__}.{reconstruct_fake_tensor.__name__}"
    # torch's context manager `safe_globals` would allow the function in all threads.
    by_user = {**_weights_only_unpickler._get_user_allowed_globals(), name: function}
    nested = functools.partial(_nested_tensor, charge)
    by_torch = {
        **_allowed_globals(),
        "torch._utils._rebuild_sparse_tensor": functools.partial(_valid_sparse_tensor, charge),
        "torch._utils._rebuild_device_tensor_from_cpu_tensor": functools.partial(
            _moved_tensor, charge
        ),
        "torch._tensor._rebuild_from_type_v2": functools.partial(_rebuild_with_state, nested),
        f"{nested_tensor.__name__}._rebuild_njt": nested,
    }
    plain = _weights_only_unpickler.Unpickler
    names = {
        **vars(_weights_only_unpickler),
        "_get_user_allowed_globals": lambda: by_user,
        "_get_allowed_globals": lambda: by_torch,
    }
    load = types.FunctionType(plain.load.__code__, names, "load")
    reader = type("Unpickler", (plain,), {"load": load})
    if serialization._is_torchscript_zip(archive):
        raise pickle.UnpicklingError("the file is a TorchScript archive, which contains code")
    pickles = types.SimpleNamespace(__name__="fxpress", Unpickler=reader)
    return serialization._load(archive, location, pickles, encoding="utf-8")

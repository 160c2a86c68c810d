"""State, constants and example inputs as bytes: what `torch.save` writes."""

from __future__ import annotations

import copyreg
import io
import pickle
import types
from collections import ChainMap
from typing import Any

import torch

from fxpress import _torch_compat_serde as compat
from fxpress._serde.schema import SCHEMA


def _reduce_fake_tensor(tensor: Any) -> tuple[Any, tuple[bytes, bool]]:
    """A fake tensor is saved as its metadata; torch's function of that name reads it back."""
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return compat.reconstruct_fake_tensor, (SCHEMA.encode_tensor_meta(tensor), is_parameter)


# The table of the process stays as it is, whoever saves in another thread.
_reducers: ChainMap[Any, Any] = ChainMap(
    {compat.FakeTensor: _reduce_fake_tensor}, copyreg.dispatch_table
)


class _Pickler(pickle.Pickler):
    dispatch_table = _reducers


# What torch.save takes for the pickle module.
_pickle = types.SimpleNamespace(__name__="fxpress", Pickler=_Pickler)


def save_artifact(value: Any, pickle_protocol: int) -> bytes:
    """The bytes of a value, none for None. Stands in for torch's `serialize_torch_artifact`."""
    if value is None:
        return b""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_module=_pickle, pickle_protocol=pickle_protocol)
    return buffer.getvalue()

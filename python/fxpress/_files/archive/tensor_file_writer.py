"""Write safetensors files that belong to an archive, which a number in both identifies."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fxpress._base.errors import UnsupportedError
from fxpress._files.archive import tensors
from fxpress._files.archive.tensor_file import DTYPES, TensorFile
from fxpress._files.errors import ArchiveError
from fxpress._files.format.tensor_header import METADATA, NUMBER
from fxpress._files.remote.ranges import Files
from fxpress._files.serde.limits import Budget
from fxpress._torch.fx import is_fake

_ALIGNMENT = 8  # bytes
_ONE_CALL = 1 << 26  # bytes of one write, after which Ctrl-C is handled
CODES = {dtype: name for name, dtype in DTYPES.items()}


def write_tensors(
    descriptor: int,
    state_dict: Mapping[str, torch.Tensor],
    number: str,
    report: Callable[[int], None] | None = None,
) -> None:
    """Write tensors. Those that share a storage, or are parts of one, have bytes of their own."""
    described = {
        name: (_dtype_of(name, tensor), tuple(tensor.shape)) for name, tensor in state_dict.items()
    }
    header, order = layout(described, {"format": "pt", NUMBER: number})
    write_all(descriptor, memoryview(header))
    for name in order:
        write_tensor(descriptor, state_dict[name], report)


def layout(
    described: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, list[str]]:
    """Return the begin of a file, and the names of its tensors in the order of their bytes.

    Args:
        described: the dtype, which the format has to have, and the sizes of each tensor.
        metadata: texts that the file carries.
    """
    entries: dict[str, Any] = {METADATA: dict(metadata)}
    # Dtypes with larger elements come first, so that all tensors are aligned.
    order = sorted(described, key=lambda name: (-described[name][0].itemsize, name))
    position = 0
    for name in order:
        dtype, sizes = described[name]
        end = position + math.prod(sizes) * dtype.itemsize
        entries[name] = {
            "dtype": CODES[dtype],
            "shape": list(sizes),
            "data_offsets": [position, end],
        }
        position = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    return len(header).to_bytes(8, "little") + header, order


def _dtype_of(name: str, tensor: torch.Tensor) -> torch.dtype:
    is_there = tensor.device.type != "meta" and not is_fake(tensor)
    if tensor.dtype not in CODES or tensor.layout is not torch.strided or not is_there:
        what = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
        raise UnsupportedError(
            f'{name!r} cannot be in a safetensors file ({what}): save with weights="inline"'
        )
    return tensor.dtype


def write_tensor(
    descriptor: int, tensor: torch.Tensor, report: Callable[[int], None] | None
) -> None:
    """Write the elements of a tensor in order, and report the bytes done since the last report."""
    plain = tensors.without_lazy_bits(tensor).detach().cpu().contiguous()
    size = plain.numel() * plain.itemsize
    if size == 0:
        return
    data = memoryview((ctypes.c_char * size).from_address(plain.data_ptr()))
    for start in range(0, size, _ONE_CALL):
        part = data[start : start + _ONE_CALL]
        write_all(descriptor, part)
        if report is not None:
            report(len(part))


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of the bytes."""
    while data:
        data = data[os.write(descriptor, data) :]


def number_of(path: Path) -> str | None:
    """Return the number of the save that wrote a file; None when the file has no such number.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with contextlib.closing(Files()) as files:
            return TensorFile(files.file(path), Budget(None, 0)).number
    except ArchiveError:
        return None

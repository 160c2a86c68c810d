"""Read the weights of programs, and compare their values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fxpress._files.archive.contents import read_parts
from fxpress._files.archive.load_options import Options
from fxpress._files.archive.reader import PT2ArchiveReader
from fxpress._files.format import names
from fxpress._tools.cli.loading import options_named


def read_all(path: Path, model: str, allow_pickle: bool) -> dict[str, Any] | None:
    """Return weights and constants by name, or None if only a load of the program can read them."""
    options = Options(allow_pickle=allow_pickle, path=str(path))
    with options_named(path), PT2ArchiveReader.of_any_format(path) as archive:
        if archive.find(names.ARCHIVE_FORMAT_PATH) is None:
            return None
        parts = read_parts(archive, model, options)
        is_read = isinstance(parts.weights, dict) and isinstance(parts.constants, dict)
        return {**parts.weights, **parts.constants} if is_read else None


def differing_weights(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return, for each differing value, its name and how its dtype, sizes or elements differ."""
    found = []
    for name in {**first, **second}:
        if name not in first or name not in second:
            what = f"only in the {'first' if name in first else 'second'}"
            found.append({"name": name, "absolute": None, "relative": None, "what": what})
            continue
        one, other = first[name], second[name]
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            difference = _difference(one, other)
            if difference is not None:
                found.append({"name": name, **difference})
    return found


def _difference(one: torch.Tensor, other: torch.Tensor) -> dict[str, Any] | None:
    """Return how two tensors differ; None if all elements are equal, where NaN equals NaN."""
    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return _unmeasured(f"{_text(one)} and {_text(other)}")
    if one.is_meta and other.is_meta:
        return None
    if type(one) is type(other) and hasattr(one, "__tensor_flatten__"):
        return _difference_of_parts(one, other)
    is_plain = one.layout is torch.strided and not (one.is_meta or other.is_meta)
    if not is_plain or one.is_quantized or type(one) not in (torch.Tensor, torch.nn.Parameter):
        return _unmeasured("not compared: these are not plain tensors")
    with torch.no_grad():
        one, other = (t.detach().cpu().resolve_conj().resolve_neg() for t in (one, other))
        if one.is_complex():
            one, other = torch.view_as_real(one), torch.view_as_real(other)
        if one.is_floating_point():
            one, other = one.double(), other.double()
            differs = (one != other) & ~(one.isnan() & other.isnan())
        else:
            differs = one != other
        if not bool(differs.any()):
            return None
        one, other = one[differs], other[differs]
        what = f"{len(one)} of {differs.numel()} items"
        if one.is_floating_point():
            finite = one.isfinite() & other.isfinite()
            infinite = len(one) - int(finite.sum())
            if infinite:
                what += f", {infinite} of them not finite"
            one, other = one[finite], other[finite]
        if len(one) == 0:
            return _unmeasured(what)
        absolute = _distances(one, other)
        relative = absolute / torch.maximum(one.double().abs(), other.double().abs())
        largest = {"absolute": float(absolute.max()), "relative": float(relative.max())}
        return {**largest, "what": what}


def _difference_of_parts(one: Any, other: Any) -> dict[str, Any] | None:
    """Compare two tensors of one subclass; describe their first inner tensors that differ."""
    (parts, context), (others, context_of_other) = (
        each.__tensor_flatten__() for each in (one, other)
    )
    if (list(parts), repr(context)) != (list(others), repr(context_of_other)):
        return _unmeasured("they consist of different inner tensors")
    for name in parts:
        difference = _difference(getattr(one, name), getattr(other, name))
        if difference is not None:
            return {**difference, "what": f"{name}: {difference['what']}"}
    return None


def _distances(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return absolute differences as float64; close 64-bit ints are subtracted without rounding."""
    far = (one.double() - other.double()).abs()
    if one.dtype not in (torch.int64, torch.uint64):
        return far
    near = (one.view(torch.int64) - other.view(torch.int64)).abs().double()
    return torch.where(far < 2**62, near, far)


def _unmeasured(what: str) -> dict[str, Any]:
    return {"absolute": None, "relative": None, "what": what}


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"

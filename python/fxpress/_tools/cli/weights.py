"""Compare the values of two programs' weights."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram


def differing_weights(first: ExportedProgram, second: ExportedProgram) -> list[dict[str, Any]]:
    """Return the parameters, buffers and constants whose values differ.

    Returns:
        For each: its name; "absolute", the largest difference of two items, and "relative", the
        largest one over the larger of the two, both None where no items can be compared; and
        "what", such as "only in the first".
    """
    sides = [{**program.state_dict, **program.constants} for program in (first, second)]
    found = []
    for name in {**sides[0], **sides[1]}:
        if name not in sides[0] or name not in sides[1]:
            what = f"only in the {'first' if name in sides[0] else 'second'}"
            found.append({"name": name, "absolute": None, "relative": None, "what": what})
            continue
        one, other = sides[0][name], sides[1][name]
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            difference = _difference(one, other)
            if difference is not None:
                found.append({"name": name, **difference})
    return found


def _difference(one: torch.Tensor, other: torch.Tensor) -> dict[str, Any] | None:
    """Return how two tensors differ; None: their items are equal, not-a-numbers too."""
    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return _unmeasured(f"{_text(one)} and {_text(other)}")
    if one.is_meta and other.is_meta:
        return None
    is_plain = one.layout is torch.strided and not (one.is_meta or other.is_meta)
    if not is_plain or one.is_quantized or type(one) not in (torch.Tensor, torch.nn.Parameter):
        return _unmeasured("not compared: no plain tensors")
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


def _distances(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the absolute differences as float64, also of whole numbers that it cannot hold."""
    far = (one.double() - other.double()).abs()
    if one.dtype not in (torch.int64, torch.uint64):
        return far
    near = (one.view(torch.int64) - other.view(torch.int64)).abs().double()
    return torch.where(far < 2**62, near, far)


def _unmeasured(what: str) -> dict[str, Any]:
    return {"absolute": None, "relative": None, "what": what}


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"

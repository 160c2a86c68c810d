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
    if one.shape != other.shape or one.dtype != other.dtype:
        what = f"{_text(one)} and {_text(other)}"
        return {"absolute": None, "relative": None, "what": what}
    with torch.no_grad():
        one, other = (t.detach().cpu().resolve_conj().resolve_neg() for t in (one, other))
        wide = torch.complex128 if one.is_complex() else torch.float64
        if one.dtype in (torch.int64, torch.uint64):
            return _whole_numbers(one, other)
        one, other = one.to(wide), other.to(wide)
        same = (one == other) | (one.isnan() & other.isnan())
        if bool(same.all()):
            return None
        one, other = one[~same], other[~same]
        absolute = (one - other).abs()
        relative = absolute / torch.maximum(one.abs(), other.abs())
        return {
            "absolute": float(absolute.max()),
            "relative": float(relative.max()),
            "what": f"{len(absolute)} of {same.numel()} items",
        }


def _whole_numbers(one: torch.Tensor, other: torch.Tensor) -> dict[str, Any] | None:
    """Return the same for numbers that float64 cannot hold."""
    differs = one != other
    if not bool(differs.any()):
        return None
    pairs = list(zip(one[differs].tolist(), other[differs].tolist(), strict=True))
    return {
        "absolute": float(max(abs(a - b) for a, b in pairs)),
        "relative": max(abs(a - b) / max(abs(a), abs(b)) for a, b in pairs),
        "what": f"{len(pairs)} of {one.numel()} items",
    }


def _text(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"

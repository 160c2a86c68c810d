"""Ranges in torch's profiler."""

from __future__ import annotations

from collections.abc import Callable

import torch

# Whether torch's profiler runs in this thread. A torch without the name gets no ranges.
profiler_is_on: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled", lambda: False)


def range_of(name: str) -> torch.profiler.record_function | None:
    """Return a range for torch's profiler; None where there is none to be entered.

    A range begins and ends with operators of torch, which modes would see and traces would keep.
    """
    if not profiler_is_on():
        return None
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return None
    return torch.profiler.record_function(name)

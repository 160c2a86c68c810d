"""Describe input tensors, and map them to their proxies, as `make_fx` does.

While torch function modes are active, make_fx counts calls of torch functions, for nodes'
`torch_fn`. torch's code that describes a tensor adds to these counts. It runs for the first of
several equivalent tensors. For the others, fxpress describes the tensor and adds equal counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from fxpress._graphs.trace.fakes import Fakes, is_plain
from fxpress._torch.tracing import (
    TRACERS,
    DisableTorchFunction,
    ProxyTensor,
    function_modes,
    has_foreign_function_modes,
)


class Inputs:
    """Tracks and describes the input tensors of one trace."""

    def __init__(self, fakes: Fakes) -> None:
        self._fakes = fakes
        # key of a tensor -> ([(function that torch called, number of calls)], the last function)
        self._calls: dict[tuple[Any, ...], tuple[list[tuple[Any, int]], Any]] = {}

    def track(self, original: Any, tensor: Any, proxy: Any, *, constant: Any, tracer: Any) -> None:
        """Map a tensor to its proxy in the tracer."""

        def track_directly() -> None:
            tracer.tensor_tracker[tensor] = ProxyTensor(proxy, constant)

        call_torch = functools.partial(original, tensor, proxy, constant=constant, tracer=tracer)
        self._run("track", tensor, tracer, call_torch, track_directly)

    def set_meta(self, original: Any, proxy: Any, value: Any) -> Any:
        """Set the meta of a proxy's node from its value; return the proxy."""
        call_torch = functools.partial(original, proxy, value)
        copy_meta = functools.partial(self._fakes.set_meta, proxy.node.meta, value)
        self._run("meta", value, proxy.tracer, call_torch, copy_meta)
        return proxy

    def _run(
        self,
        operation: str,
        value: Any,
        tracer: Any,
        call_torch: Callable[[], None],
        shortcut: Callable[[], None],
    ) -> None:
        """Run `call_torch` for the first of equivalent tensors, and `shortcut` for the others."""
        modes = function_modes()
        with DisableTorchFunction():
            key = self._key(operation, value, modes) if type(tracer) in TRACERS else None
        if key is None:
            call_torch()
            return
        known = self._calls.get(key)
        if known is None:
            self._calls[key] = _counted(tracer, call_torch)
            return
        with DisableTorchFunction():
            shortcut()
        counts, last = known
        add_counts(tracer, counts)
        if counts:
            tracer.torch_fn_metadata = last

    def _key(self, operation: str, value: Any, modes: int) -> tuple[Any, ...] | None:
        """Return a key of all that torch's calls for `value` depend on; None: run torch's code."""
        if not is_plain(value) or has_foreign_function_modes():
            return None
        return (operation, modes, value.shape, value.stride(), value.dtype)


def _counted(tracer: Any, call: Callable[[], None]) -> tuple[list[tuple[Any, int]], Any]:
    """Run `call`; return (function, calls) for torch functions that it called, and the last one."""
    before = dict(tracer.torch_fn_counts)
    call()
    return counted_since(tracer.torch_fn_counts, before), tracer.torch_fn_metadata


def counted_since(after: dict[Any, int], before: dict[Any, int]) -> list[tuple[Any, int]]:
    """Return (function, number of calls between `before` and `after`) for functions with calls."""
    return [
        (each, n - before.get(each, 0)) for each, n in after.items() if n != before.get(each, 0)
    ]


def add_counts(tracer: Any, counts: Iterable[tuple[Any, int]]) -> None:
    """Add (function, number of calls) to the counts of a tracer."""
    totals = tracer.torch_fn_counts
    for function, times in counts:
        totals[function] = totals.get(function, 0) + times


def without_stack_traces(original: Any, tracer: Any, *args: Any, **kwargs: Any) -> Any:
    """Create the placeholders of a trace without collecting their stack traces."""
    recorded = tracer.record_stack_traces
    tracer.record_stack_traces = recorded and type(tracer) not in TRACERS
    try:
        return original(tracer, *args, **kwargs)
    finally:
        tracer.record_stack_traces = recorded

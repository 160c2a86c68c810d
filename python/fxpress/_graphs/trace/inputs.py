"""Describe tensors, and map them to their proxies, like torch's `make_fx`.

While its function modes are active, torch counts the functions that it calls for this, and names
nodes by these counts. torch's code handles the first of equal tensors; others add the same counts.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """The tensors of one trace."""

    def __init__(self, fakes: Fakes) -> None:
        self._fakes = fakes
        self._calls: dict[tuple[Any, ...], tuple[list[tuple[Any, int]], Any]] = {}

    def track(self, original: Any, tensor: Any, proxy: Any, *, constant: Any, tracer: Any) -> None:
        """Map a tensor to its proxy."""

        def torchs() -> None:
            original(tensor, proxy, constant=constant, tracer=tracer)

        def ours() -> None:
            tracer.tensor_tracker[tensor] = ProxyTensor(proxy, constant)

        self._run("track", tensor, tracer, torchs, ours)

    def set_meta(self, original: Any, proxy: Any, value: Any) -> Any:
        """Describe a value in the meta of its proxy's node; return the proxy."""

        def torchs() -> None:
            original(proxy, value)

        def ours() -> None:
            self._fakes.set_meta(proxy.node.meta, value)

        self._run("meta", value, proxy.tracer, torchs, ours)
        return proxy

    def _run(
        self,
        what: str,
        value: Any,
        tracer: Any,
        torchs: Callable[[], None],
        ours: Callable[[], None],
    ) -> None:
        modes = function_modes()
        with DisableTorchFunction():
            key = self._key(what, value, modes) if type(tracer) in TRACERS else None
        if key is None:
            torchs()
            return
        known = self._calls.get(key)
        if known is None:
            self._calls[key] = _counted(tracer, torchs)
            return
        with DisableTorchFunction():
            ours()
        counts, last = known
        for function, times in counts:
            tracer.torch_fn_counts[function] = tracer.torch_fn_counts.get(function, 0) + times
        if counts:
            tracer.torch_fn_metadata = last

    def _key(self, what: str, value: Any, modes: int) -> tuple[Any, ...] | None:
        """Return a key of the properties that the calls depend on; None if torch has to run."""
        if not is_plain(value) or has_foreign_function_modes():
            return None
        return (what, modes, value.shape, value.stride(), value.dtype)


def _counted(tracer: Any, call: Callable[[], None]) -> tuple[list[tuple[Any, int]], Any]:
    """Call a function; return its number of calls by function of torch, and the last function."""
    before = dict(tracer.torch_fn_counts)
    call()
    return counted_since(tracer.torch_fn_counts, before), tracer.torch_fn_metadata


def counted_since(after: dict[Any, int], before: dict[Any, int]) -> list[tuple[Any, int]]:
    """Return the functions of torch that a trace has called in between, with numbers of calls."""
    return [
        (each, n - before.get(each, 0)) for each, n in after.items() if n != before.get(each, 0)
    ]


def without_stack_traces(original: Any, tracer: Any, *args: Any, **kwargs: Any) -> Any:
    """Create the placeholders of a trace without collecting stack traces."""
    recorded = tracer.record_stack_traces
    tracer.record_stack_traces = recorded and type(tracer) not in TRACERS
    try:
        return original(tracer, *args, **kwargs)
    finally:
        tracer.record_stack_traces = recorded

"""Define `fast_tracing`: within its block, fxpress replaces slow functions of `make_fx`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from fxpress._base.replacement import Replacement
from fxpress._graphs.trace.cache_keys import CacheKeys
from fxpress._graphs.trace.captured import Captured
from fxpress._graphs.trace.fakes import Fakes, is_plain
from fxpress._graphs.trace.inputs import Inputs, without_stack_traces
from fxpress._graphs.trace.proxy_calls import ProxyCalls
from fxpress._torch.tracing import (
    CACHE_KEY,
    DISPATCH,
    ENTRY_OF_OUTPUT,
    FAKE_OF_CACHE,
    FIND_UNBACKED,
    MAKE_PLACEHOLDERS,
    PROXY_CALL,
    RUN_NODE,
    SET_META,
    TRACK_TENSOR,
    FakeTensor,
    has_symbols,
    is_watched,
    may_be_unbacked,
    numbers_of_entry,
)


class _Trace(threading.local):
    """The state of this thread's innermost block of `fast_tracing`."""

    calls: ProxyCalls
    captured: Captured
    keys: CacheKeys
    inputs: Inputs
    fakes: Fakes
    output: Any = None  # the operator result for which torch is creating a cache entry


_trace = _Trace()


def _dispatch(original: Any, *args: Any, **kwargs: Any) -> Any:
    return _trace.calls.dispatch(original, *args, **kwargs)


def _proxy_call(original: Any, *args: Any) -> Any:
    return _trace.calls.call(original, *args)


def _run_node(original: Any, interpreter: Any, node: Any) -> Any:
    return _trace.captured.run(original, interpreter, node)


def _set_meta(original: Any, *args: Any, **kwargs: Any) -> Any:
    return _trace.inputs.set_meta(original, *args, **kwargs)


def _track_tensor(original: Any, *args: Any, **kwargs: Any) -> Any:
    return _trace.inputs.track(original, *args, **kwargs)


def _fake_of_cache(original: Any, mode: Any, state: Any, entry: Any, *rest: Any) -> Any:
    """Return the fake tensor that an entry of torch's cache of fake tensors describes."""

    def call_torch() -> Any:
        return original(mode, state, entry, *rest)

    metadata, output = entry.metadata, _trace.output
    if metadata is None or entry.inplace_idx is not None or not _is_strided(metadata):
        return call_torch()
    if output is not None and not may_be_unbacked(metadata, state.shape_env):
        # torch creates this tensor to compare its dispatch keys with the keys of the output.
        return _trace.fakes.with_same_keys(output, entry.view_idx is None, call_torch)
    base = None if entry.view_idx is None else rest[-1][entry.view_idx]
    if has_symbols(metadata) and (base is None or type(base) is FakeTensor):
        numbers = numbers_of_entry(metadata, rest[0], state.shape_env)
        return _trace.fakes.of_numbers(mode, metadata, numbers, base, call_torch)
    made = None
    if base is None or is_plain(base):
        made = _trace.fakes.of_metadata(mode, metadata, base)
    return call_torch() if made is None else made


def _entry_of_output(original: Any, mode: Any, *args: Any) -> Any:
    _trace.output = args[-1]
    try:
        return original(mode, *args)
    finally:
        _trace.output = None


def _cache_key(original: Any, *args: Any, **kwargs: Any) -> Any:
    return _trace.keys.find(original, *args, **kwargs)


def _is_strided(metadata: Any) -> bool:
    return metadata.layout is torch.strided and not (metadata.is_conj or metadata.is_neg)


def _find_unbacked(
    original: Any,
    value: Any,
    path: Any,
    real: Any = None,
    shape_env: Any = None,
    pending: Any = None,
    simplify: bool = False,
) -> Any:
    """Find unbacked symbols in `value`; do not call torch's function if no symbol is pending."""
    if not pending and real is None:
        return {}
    return original(value, path, real, shape_env, pending, simplify)


_REPLACEMENTS = (
    Replacement(*DISPATCH, _dispatch),
    Replacement(*PROXY_CALL, _proxy_call),
    Replacement(*RUN_NODE, _run_node),
    Replacement(*SET_META, _set_meta),
    Replacement(*TRACK_TENSOR, _track_tensor),
    Replacement(*MAKE_PLACEHOLDERS, without_stack_traces),
    Replacement(*CACHE_KEY, _cache_key),
    Replacement(*FAKE_OF_CACHE, _fake_of_cache),
    Replacement(*ENTRY_OF_OUTPUT, _entry_of_output),
    Replacement(*FIND_UNBACKED, _find_unbacked),
)


@contextlib.contextmanager
def fast_tracing() -> Iterator[None]:
    """Make this thread's traces faster within the block, with the same resulting graphs."""
    if is_watched() or "calls" in vars(_trace):
        yield
        return
    _trace.fakes = Fakes()
    _trace.inputs = Inputs(_trace.fakes)
    _trace.calls = ProxyCalls(_trace.fakes)
    _trace.captured = Captured(_trace.fakes, _trace.calls)
    _trace.keys = CacheKeys()
    try:
        with contextlib.ExitStack() as stack:
            for each in _REPLACEMENTS:
                stack.enter_context(each.block())
            yield
    finally:
        vars(_trace).clear()

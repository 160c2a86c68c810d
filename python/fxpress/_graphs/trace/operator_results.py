"""Create the results of repeated calls of operators in a pre-dispatch trace.

torch runs a call of an operator through its dispatcher, autograd, Python decompositions and the
cache of fake tensors. The result depends on the metadata of the arguments, so fxpress creates the
results of later equal calls as copies, unless they are views or require gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from fxpress._graphs.trace.fakes import Fakes
from fxpress._graphs.trace.results import (
    CallValues,
    Index,
    NotRepeatableError,
    RepeatedValues,
    Result,
    mapped,
)
from fxpress._torch import tracing as compat
from fxpress._torch.fakes import call_digest, fake_result
from fxpress._torch.origins import BUILTIN, user_kernel


class _Call(NamedTuple):
    """A call of an operator without symbolic sizes, and the tensors among its arguments."""

    key: Any
    inputs: list[Any]


class _Known(NamedTuple):
    """The result of a call of an operator."""

    result: Any  # a Result, a list or tuple of them, or the Index of an input that was returned
    hits: int  # the number of results from torch's cache of fake tensors
    owner: Any  # keeps ids in the key from being reused


class OperatorResults:
    """Runs the operators of one trace at a time."""

    def __init__(self, fakes: Fakes) -> None:
        self._fakes = fakes
        self._begin(None)

    def _begin(self, tracer: Any) -> None:
        self._tracer = tracer
        self._known: dict[Any, _Known | None] = {}
        self._is_allowed = fake_result is not None and not user_kernel()

    def run(self, tracer: Any, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return the result of an operator: by torch, or equal to the result of an equal call."""
        if tracer is not self._tracer:
            self._begin(tracer)
        state = compat.autograd_state() if self._is_allowed else None
        call = None if state is None else self._call(state, function, args, kwargs)
        if call is None:
            return function(*args, **kwargs)
        known = self._known.get(call.key)
        if known is not None:
            return self._repeat(known, call)
        if call.key in self._known:
            return function(*args, **kwargs)
        before = _state(tracer, call.inputs)
        misses, hits = compat.cache_counts()
        values = CallValues(self._fakes, call.inputs, ())
        result = function(*args, **kwargs)
        if compat.cache_counts()[0] == misses:  # else, later calls may have other storages
            hits = compat.cache_counts()[1] - hits
            self._known[call.key] = None
            if _state(tracer, call.inputs) == before:
                with contextlib.suppress(NotRepeatableError):
                    owner = (function, call.inputs[0].fake_mode)
                    same = [i for i, each in enumerate(call.inputs) if each is result]
                    described = Index(same[0]) if same else values.result(result)
                    if same or _is_new(result, call.inputs):
                        self._known[call.key] = _Known(described, hits, owner)
        return result

    def _call(self, state: Any, function: Any, args: Any, kwargs: dict[str, Any]) -> _Call | None:
        is_observed = compat.dispatch_modes() != 1 or compat.excluded_autograd() is not None
        if is_observed or function.namespace not in BUILTIN:
            return None
        inputs: list[Any] = []
        for each in (*args, *kwargs.values()):
            inputs += filter(_is_fake, each if type(each) in (list, tuple) else (each,))
        if not inputs or any(each.is_inference() for each in inputs):
            return None  # inference tensors do not count writes
        if state.gradients and any(each.requires_grad for each in inputs):
            return None  # a copy of the result would not be in autograd's graph
        mode = inputs[0].fake_mode
        digest = call_digest(mode, compat.FakeTensor, args, kwargs)
        if digest is None:
            return None
        settings = (*compat.default_dtype_and_device(), *compat.attention_backends())
        return _Call((id(function), id(mode), state, settings, digest), inputs)

    def _repeat(self, known: _Known, call: _Call) -> Any:
        if type(known.result) is Index:
            return call.inputs[known.result.number]
        values = RepeatedValues(self._fakes, call.inputs, (), ())
        compat.count_hits(known.hits)
        return mapped(known.result, (Result,), values.create)


def _state(tracer: Any, inputs: Sequence[Any]) -> Any:
    """Return what a call changes if it adds nodes, calls torch's functions, or writes to inputs."""
    counts = (len(tracer.graph.nodes), dict(tracer.torch_fn_counts), compat.counted_gradients())
    return counts, compat.autograd_state(), [each._version for each in inputs]


def _is_new(result: Any, inputs: Sequence[Any]) -> bool:
    """Return whether the tensors of a result are neither views nor in autograd's graph."""
    if type(result) in (list, tuple):
        return all(_is_new(each, inputs) for each in result)
    storage = result.untyped_storage()._cdata
    if any(storage == each.untyped_storage()._cdata for each in inputs):
        return False
    return not (result.requires_grad or result._is_view())


def _is_fake(value: Any) -> bool:
    return type(value) is compat.FakeTensor

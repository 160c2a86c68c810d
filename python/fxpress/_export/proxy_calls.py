"""Trace calls of operators: what torch's `proxy_call` does for a call that is nothing special."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.fx import Node, Proxy

from fxpress._export.fakes import Fakes, is_plain
from fxpress._export.stack_traces import StackTraces
from fxpress._torch.tracing import (
    TRACERS,
    FakeTensor,
    OpOverload,
    ProxyTensor,
    ProxyTorchDispatchMode,
    function_modes,
    is_traced_plainly,
    preserves_meta,
    set_original_aten_op,
    track_tensor_tree,
)

_CONSTANTS = frozenset(
    (
        *(int, float, bool, str, type(None)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    )
)
_SEQUENCES = {tuple: tuple, torch.Size: tuple, list: list}
_NOTHING = contextlib.nullcontext()


class _SpecialError(Exception):
    """An argument that only torch's own code handles."""


class ProxyCalls:
    """The calls of one trace."""

    def __init__(self, fakes: Fakes) -> None:
        self._fakes = fakes
        self._stacks = StackTraces()
        self._plain: dict[OpOverload, bool] = {}

    def dispatch(self, original: Any, mode: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Trace a call that reaches a mode before autograd.

        Args:
            original: torch's function for it.
            mode: the mode.
            function: the operator.
            args, kwargs: its arguments.
        """
        if type(mode) is not ProxyTorchDispatchMode or not self._is_plain(mode, function):
            return original(mode, function, *args, **kwargs)
        tracer = mode.tracer
        try:
            nodes = _nodes(args, tracer.tensor_tracker)
            keywords = {k: _nodes(v, tracer.tensor_tracker) for k, v in kwargs.items()}
        except _SpecialError:
            return original(mode, function, *args, **kwargs)
        with set_original_aten_op(function) if preserves_meta() else _NOTHING:
            proxy = Proxy(self._create_node(tracer, function, nodes, keywords), tracer)
            out = function(*args, **kwargs)
            if is_plain(out):
                tracer.tensor_tracker[out] = ProxyTensor(proxy, None)
                self._fakes.set_meta(proxy.node.meta, out)
            else:
                track_tensor_tree(out, proxy, constant=None, tracer=tracer)
        return out

    def _is_plain(self, mode: Any, function: Any) -> bool:
        known = self._plain.get(function)
        if known is None:
            known = self._plain[function] = is_traced_plainly(function)
        return (
            known
            and mode.pre_dispatch
            and not function_modes()
            and type(mode.tracer) in TRACERS
            and not mode.emulate_precision_casts
            and function not in mode.decomposition_table
        )

    def _create_node(
        self, tracer: Any, function: OpOverload, args: Any, kwargs: dict[str, Any]
    ) -> Node:
        name = tracer.graph._target_to_str(function.overloadpacket.__name__)
        recorded = tracer.record_stack_traces
        tracer.record_stack_traces = False
        try:
            node: Node = tracer.create_node("call_function", function, args, kwargs, name)
        finally:
            tracer.record_stack_traces = recorded
        if recorded and not node.stack_trace:
            forward_only = tracer._record_forward_stack_traces_only
            text = self._stacks.text(forward_only=forward_only)
            if text:
                _insert_stack_trace(node.meta, text, behind_modules=bool(tracer.module_stack))
        return node


def _insert_stack_trace(meta: dict[str, Any], text: str, *, behind_modules: bool) -> None:
    """Put a stack trace where a tracer puts it, before what is added to the node later."""
    later = ("torch_fn",) if behind_modules else ("nn_module_stack", "torch_fn")
    moved = [(key, meta.pop(key)) for key in later if key in meta]
    meta["stack_trace"] = text
    meta.update(moved)


def _nodes(value: Any, tracker: Any) -> Any:
    """Return an argument with nodes in place of tensors.

    Raises:
        _SpecialError: a part of it is something else than a traced tensor or a constant.
    """
    kind = type(value)
    if kind is FakeTensor:
        traced = tracker.get(value)
        if traced is None or traced.constant is not None:
            raise _SpecialError
        return traced.proxy.node
    if kind in _CONSTANTS:
        return value
    if kind in _SEQUENCES:
        return _SEQUENCES[kind]([_nodes(each, tracker) for each in value])
    raise _SpecialError

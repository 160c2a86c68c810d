"""Trace simple calls of operators faster than torch's `proxy_call`, with the same results."""

from __future__ import annotations

import bisect
import contextlib
import functools
import sys
import traceback
import types
from typing import Any

import torch
from torch.fx import Node, Proxy

from fxpress._graphs.trace.fakes import Fakes, is_simple
from fxpress._torch.tracing import (
    STACK_TRACE_ANCHORS,
    TRACERS,
    FakeTensor,
    OpOverload,
    ProxyTensor,
    ProxyTorchDispatchMode,
    counted_gradients,
    fetch_sym_proxy,
    function_modes,
    has_new_symbols,
    is_traced_plainly,
    kept_meta,
    preserves_meta,
    proxy_tensor,
    set_original_aten_op,
    track_tensor_tree,
    uninteresting_files,
)


class StackTraces:
    """Formats the stack traces of a trace's nodes; formats equal stack traces only once."""

    def __init__(self) -> None:
        self._hidden = uninteresting_files()
        # Keys contain ids of code objects, because hashing a code object reads all of its bytecode.
        self._texts: dict[tuple[int, ...], str] = {}
        self._shown: dict[int, bool] = {}
        # id of a code object -> (first byte, end, line) of its instructions, in order
        self._lines: dict[int, list[tuple[int, int, int | None]]] = {}
        self._kept: list[types.CodeType] = []  # keeps code objects alive, so ids are not reused

    def text(self) -> str:
        """Return the stack trace without hidden frames, outermost first; "" if all are hidden."""
        known = self._shown
        frames: list[tuple[types.CodeType, int]] = []
        key: list[int] = []
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            shown = known.get(id(code))
            if shown is None:
                shown = self._decide(code)
            if shown:
                frames.append((code, frame.f_lasti))
                key += id(code), frame.f_lasti
            frame = frame.f_back
        text = self._texts.get(tuple(key))
        if text is None:
            text = self._texts[tuple(key)] = self._format(frames[::-1])
        return text

    def _decide(self, code: types.CodeType) -> bool:
        name, file = code.co_name, code.co_filename
        shown = self._shown[id(code)] = file not in self._hidden and (
            name == "forward"
            or file.endswith("torch/__init__.py")
            or (file, name) in STACK_TRACE_ANCHORS
        )
        self._kept.append(code)
        return shown

    def _format(self, frames: list[tuple[types.CodeType, int]]) -> str:
        summaries = [
            traceback.FrameSummary(code.co_filename, self._line(code, last), code.co_name)
            for code, last in frames
        ]
        return "".join(traceback.StackSummary.from_list(summaries).format()).strip()

    def _line(self, code: types.CodeType, last: int) -> int | None:
        """Return the line of a function's instruction; `f_lineno` is slow for long functions."""
        known = self._lines.get(id(code))
        if known is None:
            known = self._lines[id(code)] = [*code.co_lines()]
        return known[bisect.bisect(known, last, key=lambda each: each[0]) - 1][2]


# Types whose equal constants lead to equal traces. Floats do not, because 0.0 == -0.0.
PLAIN_TYPES = frozenset(
    (
        *(int, bool, str, type(None)),
        *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    )
)
_CONSTANTS = PLAIN_TYPES | {float}
_SEQUENCES = {tuple: tuple, torch.Size: tuple, list: list}
_NOTHING = contextlib.nullcontext()


class _SpecialError(Exception):
    """Raised for an argument of a call that only torch's code can trace."""


class ProxyCalls:
    """Adds nodes for the operator calls of one trace."""

    def __init__(self, fakes: Fakes) -> None:
        self._fakes = fakes
        self._stacks = StackTraces()
        self._plain: dict[bool, dict[OpOverload, bool]] = {False: {}, True: {}}
        self.recording: Any = None  # records the operators of one call of a captured graph

    def dispatch(self, original: Any, mode: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Trace a simple call in a pre-dispatch mode; pass other calls to torch's code."""
        recording = self.recording
        if self._is_plain(mode, function):
            with self.originating(function), contextlib.suppress(_SpecialError):
                return self._trace(mode.tracer, function, args, kwargs, recording)
        if recording is not None:
            recording.spoil()
        return original(mode, function, *args, **kwargs)

    def call(self, original: Any, mode: Any, function: Any, *rest: Any) -> Any:
        """Trace a simple call in a mode below autograd; pass other calls to torch's code."""
        _, args, kwargs = rest
        if self._is_plain(mode, function):
            with contextlib.suppress(_SpecialError):
                return self._trace(mode.tracer, function, args, kwargs, None)
        return original(mode, function, *rest)

    def _trace(self, tracer: Any, function: Any, args: Any, kwargs: Any, recording: Any) -> Any:
        """Add a call's node, and return its result. _SpecialError: only torch can trace it."""
        length = len(tracer.graph.nodes)
        nodes = _nodes(args, tracer)
        keywords = {k: _nodes(v, tracer) for k, v in kwargs.items()}
        if recording is not None:
            recording.begin(function, args, kwargs, len(tracer.graph.nodes) - length)
        node = self.create_node(tracer, function, nodes, keywords)
        out = function(*args, **kwargs)
        gradients = counted_gradients()
        self.set_result(node, out, tracer)
        if recording is not None:
            recording.end(out, gradients)
        return out

    @staticmethod
    def originating(function: OpOverload) -> Any:
        """Return a context manager in which `function` becomes `original_aten` of new nodes."""
        return set_original_aten_op(function) if preserves_meta() else _NOTHING

    def set_result(self, node: Node, out: Any, tracer: Any) -> None:
        """Make `out` the value of a node."""
        proxy = Proxy(node, tracer)
        if not is_simple(out) or has_new_symbols(out.fake_mode):
            track_tensor_tree(out, proxy, constant=None, tracer=tracer)
            return
        self._fakes.set_meta(node.meta, out)
        if out._has_symbolic_sizes_strides:
            proxy_tensor.track_tensor(out, proxy, constant=None, tracer=tracer)
        else:
            tracer.tensor_tracker[out] = ProxyTensor(proxy, None)

    def _is_plain(self, mode: Any, function: Any) -> bool:
        if type(mode) is not ProxyTorchDispatchMode:
            return False
        plain = self._plain[mode.pre_dispatch]
        known = plain.get(function)
        if known is None:
            known = plain[function] = is_traced_plainly(function, mode.pre_dispatch)
        return (
            known
            and not function_modes()
            and type(mode.tracer) in TRACERS
            and not mode.emulate_precision_casts
            and function not in mode.decomposition_table
        )

    def create_node(
        self, tracer: Any, function: OpOverload, args: Any, kwargs: dict[str, Any]
    ) -> Node:
        """Create the node of a call, with the stack trace that torch would give it."""
        name = tracer.graph._target_to_str(function.overloadpacket.__name__)
        create = functools.partial(
            tracer.create_node, "call_function", function, args, kwargs, name
        )
        if not (tracer.record_stack_traces and tracer._record_forward_stack_traces_only):
            node: Node = create()
            return node
        tracer.record_stack_traces = False
        try:
            node = create()
        finally:
            tracer.record_stack_traces = True
        if not node.stack_trace and (text := self._stacks.text()):
            _insert_stack_trace(node.meta, text, tracer)
        return node


def _insert_stack_trace(meta: dict[str, Any], text: str, tracer: Any) -> None:
    """Set `meta["stack_trace"]` in torch's order: it precedes the entries that a tracer adds."""
    kept = kept_meta()
    if kept is None:
        kept = {"nn_module_stack": None} if tracer.module_stack else {}
    later = [key for key in ("nn_module_stack", "torch_fn") if key in meta and key not in kept]
    moved = [(key, meta.pop(key)) for key in later]
    meta["stack_trace"] = text
    meta.update(moved)


def _nodes(value: Any, tracer: Any) -> Any:
    """Return an argument with nodes in place of the tensors and symbolic ints of a trace.

    The node of a symbolic int is created if it does not exist yet.
    """
    kind = type(value)
    if kind is FakeTensor:
        traced = tracer.tensor_tracker.get(value)
        if traced is None or traced.constant is not None:
            raise _SpecialError
        return traced.proxy.node
    if kind in _CONSTANTS:
        return value
    if kind in _SEQUENCES:
        return _SEQUENCES[kind]([_nodes(each, tracer) for each in value])
    if kind is torch.SymInt and value in tracer.symnode_tracker:
        return node_of_number(value, tracer)
    raise _SpecialError


def node_of_number(number: torch.SymInt, tracer: Any) -> Any:
    """Return the node of a symbolic int that is traced, or its value if it is constant."""
    found = fetch_sym_proxy(tracer)(number)
    return found.node if isinstance(found, Proxy) else found

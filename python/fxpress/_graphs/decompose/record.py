"""Trace a call by torch on metadata, and record a template."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fxpress._graphs.decompose.keys import Call, mapped
from fxpress._graphs.decompose.reading import Reading, Recording
from fxpress._graphs.decompose.symbols import Symbols
from fxpress._graphs.decompose.template import Output, Template, specs_in
from fxpress._graphs.decompose.values import Number, UnsafeError, Value
from fxpress._torch import decompose as compat
from fxpress._torch import symbols as sizes


class _Mark:
    """A placeholder for an item of meta, which torch copies."""

    def __copy__(self) -> _Mark:
        return self


_STACK = "the stack trace of the node"
_MARKS: dict[str, Any] = {
    "stack_trace": _STACK,
    "custom": {"the annotations of the node": True},
    "nn_module_stack": {"the modules of the node": ("", "")},
}


class _Traced(NamedTuple):
    """A call to trace: the arguments of `Recorder.record`."""

    target: Any
    args: Any
    kwargs: Any
    call: Call
    environment: dict[Node, Any]
    meta: dict[str, Any]  # items that identify their copies, see `_marked`

    def run(
        self, inputs: list[Any], numbers: list[Any], graph: Any
    ) -> tuple[Any, dict[Value, Any]]:
        """Run the call; return its result, and its tensor arguments by their Values."""
        wrapped: dict[Value, Any] = {}

        def made(value: Value | Number) -> Any:
            if type(value) is Number:
                return numbers[self.call.numbers.index(value)]
            assert type(value) is Value
            if value not in wrapped:
                wrapped[value] = _wrapped(inputs[self.call.number_of(value)], value)
            return wrapped[value]

        given = [mapped(a, self.environment, made) for a in self.args]
        named = {k: mapped(a, self.environment, made) for k, a in self.kwargs.items()}
        standin = compat.Traced("traced", "traced", graph, {**self.meta, "val": None})
        try:
            with compat.with_meta_of(standin):
                result = self.target(*given, **named)
        except UnsafeError:
            raise
        except Exception as error:
            message = f"{self.target}: the trace raised {type(error).__name__}"
            raise UnsafeError(message) from error
        for value, outer in wrapped.items():
            if compat.was_changed(outer, inputs[self.call.number_of(value)]):
                raise UnsafeError(f"{self.target}: the trace changed an input")
        return result, wrapped


class Recorder:
    """Records calls within one trace of torch."""

    def __init__(
        self, tracer: Any, functional_mode: Any, fakes: compat.Fakes, symbols: Symbols
    ) -> None:
        self._tracer = tracer
        self._functional_mode = functional_mode
        self._fakes = fakes
        self._symbols = symbols
        self._inputs = 0
        self._names = compat.Candidates(tracer)
        self._names.note()

    def record(
        self,
        target: Any,
        args: Any,
        kwargs: Any,
        call: Call,
        environment: dict[Node, Any],
        fields: tuple[str, ...],
    ) -> Template:
        """Trace a call, and return its template."""

        traced = _Traced(target, args, kwargs, call, environment, _marked(fields))
        before = sizes.state(self._symbols.shape_env)
        template = self._template(traced)
        if sizes.state(self._symbols.shape_env) != before:
            raise UnsafeError(f"{target}: the trace adds a guard or a symbol")
        return template

    def _template(self, traced: _Traced) -> Template:
        # torch runs a program once before it traces it. That fills the fake mode's cache, and a
        # cached tensor may have another storage or offset than a computed one. So a call is run
        # before it is traced too, unless caching does not change the tensors of its trace.
        computed = None
        call = traced.call
        if not any(value.facts.is_symbolic for value in call.values):
            cached = compat.cached_results(self.mode)
            computed = self._trace(traced)
            if _lies_as_cached(computed, len(call.storages)):
                return computed
            compat.restore_cached_results(self.mode, cached)
        with compat.without_tracing():
            traced.run(self._make_inputs(call), self._make_numbers(call), self._tracer.graph)
        template = self._trace(traced)
        if computed is None:
            return template
        sizes_of_inputs = [storage.nbytes for storage in call.storages]
        places = [_places(made, sizes_of_inputs) for made in (computed, template)]
        return template._replace(is_from_cache=True, moves=places[0] != places[1])

    def _trace(self, traced: _Traced) -> Template:
        """Trace a call once, and return its template."""
        tracer, call = self._tracer, traced.call
        sizes.forget_numbers(tracer)
        inputs, numbers = self._make_inputs(call), self._make_numbers(call)
        self._inputs += 1
        name = f"input{self._inputs}"
        known = [(t, compat.track(t, tracer, name)) for t in inputs]
        tracked = [sizes.track_number(n, tracer, name, compat.without_stack()) for n in numbers]
        last = next(iter(reversed(tracer.graph.nodes)), None)
        tokens = len(self._functional_mode._tokens)
        tracer.torch_fn_counts = {}
        tracer.torch_fn_metadata = None
        result, wrapped = traced.run(inputs, numbers, tracer.graph)
        if len(self._functional_mode._tokens) != tokens:
            raise UnsafeError(f"{traced.target}: the trace has effects")
        added = []
        node = next(iter(tracer.graph.nodes), None) if last is None else last.next
        while node is not None and node is not tracer.graph._root:
            added.append(node)
            node = node.next
        recording = Recording(tracer, self.mode, self._names.of)
        of = (recording, traced.target, known, tracked, wrapped, traced.meta, call)
        template = Reading(*of).template(added, result)
        for node in (*added, *tracked):
            node.meta = {}  # a template keeps nodes, but not tensors
        return template

    def _make_numbers(self, call: Call) -> list[Any]:
        # New objects, not sizes of tensors: a tracer distinguishes numbers by identity.
        env = self._symbols.shape_env
        return [sizes.number_of(n.expression, n.kind, env) for n in call.numbers]

    def _make_inputs(self, call: Call) -> list[Any]:
        """Create a fake tensor for each value of a call; they share storages like the values."""
        made = []
        env = self._symbols.shape_env
        with compat.outside_of_modes(), sizes.without_guards(env):
            size = self._symbols.size
            storages = {s: self._fakes.storage(size(s.nbytes), None) for s in call.storages}
            for value in call.values:
                f = self._symbols.facts(value.facts)
                place = (f.shape, f.strides, f.dtype, f.device, f.offset, storages[value.storage])
                made.append(self._fakes.tensor(*place, f.requires_grad))
        return made

    @property
    def mode(self) -> Any:
        """The program's fake mode."""
        return self._fakes.mode


def _marked(fields: tuple[str, ...]) -> dict[str, Any]:
    """Return meta for a traced call whose items identify their copies."""
    meta: dict[str, Any] = {field: _Mark() for field in fields}
    for field, mark in _MARKS.items():
        if field in meta:
            meta[field] = mark
    return meta


def _wrapped(fake: torch.Tensor, value: Value) -> Any:
    """Return the functional tensor of a fake tensor, with the requires_grad of its value."""
    grad = value.facts.wrapper_requires_grad
    if grad == fake.requires_grad:
        return compat.functional(fake, None)
    with compat.outside_of_modes():
        like = torch.empty(0, device="meta", requires_grad=grad)
    return compat.functional(fake, like)


def _lies_as_cached(template: Template, inputs: int) -> bool:
    """Return whether tensors from the fake mode's cache would have the template's storages.

    The cache creates each tensor with a new storage, except that results of operators whose schema
    declares a view share the storage of their input. Composite view operators are never cached.
    """
    known = set(range(inputs))
    for node in template.nodes:
        specs = specs_in(node.value)
        places = {spec.storage for spec in specs}
        is_new = len(places) == len(specs) and known.isdisjoint(places)
        is_new = is_new and all(spec.is_whole for spec in specs)
        if node.target is operator.getitem or compat.is_view(node.target):
            is_new = is_new and compat.is_composite(node.target)
            if not (is_new or places <= known):
                return False
        elif not is_new:
            return False
        known |= places
    return True


def _places(template: Template, inputs: list[Any]) -> list[tuple[Any, Any]]:
    """Return, for each tensor that a call returns, its offset and the size of its storage."""
    storages = [*inputs, *template.fresh]
    return [
        (output.facts.offset, storages[output.storage])
        for output in compat.pytree.tree_leaves(template.result, lambda v: type(v) is Output)
        if type(output) is Output
    ]

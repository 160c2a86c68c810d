"""Let torch trace a call on fake tensors, and record the trace as a template."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fxpress._graphs.decompose.keys import Call, map_values
from fxpress._graphs.decompose.reading import TemplateBuilder, nodes_after
from fxpress._graphs.decompose.symbols import Symbols
from fxpress._graphs.decompose.template import Output, Template, specs_in
from fxpress._graphs.decompose.values import Number, UnsafeError, Value
from fxpress._torch import decompose as compat
from fxpress._torch import symbols as sizes


class _Mark:
    """A unique item of meta. `copy` returns the object itself, so that copies are recognizable."""

    def __copy__(self) -> _Mark:
        return self


_STACK = "the stack trace of the node"
_MARKS: dict[str, Any] = {
    "stack_trace": _STACK,
    "custom": {"the annotations of the node": True},
    "nn_module_stack": {"the modules of the node": ("", "")},
}


def changed_input(target: Any) -> UnsafeError:
    """Return the error for a call that writes to a tensor, and cannot be instantiated."""
    return UnsafeError(f"{target}: the trace changed an input")


class _CallToTrace(NamedTuple):
    """A call that torch traces, with its arguments."""

    node: Node  # of the old graph
    call: Call
    environment: dict[Node, Any]
    meta: dict[str, Any]  # from `_marked_meta`

    def run(
        self, inputs: list[Any], numbers: list[Any], graph: Any
    ) -> tuple[Any, dict[Value, Any], Value | None]:
        """Run the call; return (its result, {Value: functional tensor}, the written Value).

        The third item is None if the call changed no input. A call may write data to one input, and
        must then return this input. For any other change, raise UnsafeError.
        """
        target: Any = self.node.target
        wrapped: dict[Value, Any] = {}

        def convert(value: Value | Number) -> Any:
            if type(value) is Number:
                return numbers[self.call.numbers.index(value)]
            assert type(value) is Value
            if value not in wrapped:
                wrapped[value] = _wrapped(inputs[self.call.number_of(value)], value)
            return wrapped[value]

        args, kwargs = map_values((self.node.args, self.node.kwargs), self.environment, convert)
        caller = compat.Traced("traced", "traced", graph, {**self.meta, "val": None})
        try:
            with compat.with_meta_of(caller):
                result = target(*args, **kwargs)
        except UnsafeError:
            raise
        except Exception as error:
            message = f"{target}: the trace raised {type(error).__name__}"
            raise UnsafeError(message) from error
        changed = [
            value
            for value, outer in wrapped.items()
            if compat.was_changed(outer, inputs[self.call.number_of(value)])
        ]
        if not changed:
            return result, wrapped, None
        aliases = [value for value in self.call.values if value.storage is changed[0].storage]
        outer = wrapped[changed[0]]
        if result is not outer or changed != aliases or not compat.has_only_new_data(outer):
            raise changed_input(target)
        return result, wrapped, changed[0]


class Recorder:
    """Lets torch trace calls of a program one at a time, and builds their templates."""

    def __init__(
        self, tracer: Any, functional_mode: Any, fakes: compat.Fakes, symbols: Symbols
    ) -> None:
        self._tracer = tracer
        self._functional_mode = functional_mode
        self._fakes = fakes
        self._symbols = symbols
        self._inputs = 0
        self._names = compat.Candidates(tracer)

    def record(
        self, node: Node, call: Call, environment: dict[Node, Any], fields: tuple[str, ...]
    ) -> Template:
        """Trace the call of a node, and return its template.

        `environment` has the values of nodes; `fields` are the keys of meta that torch copies.
        """
        to_trace = _CallToTrace(node, call, environment, _marked_meta(fields))
        before = sizes.state(self._symbols.shape_env)
        template = self._template(to_trace)
        if sizes.state(self._symbols.shape_env) != before:
            raise UnsafeError(f"{node.target}: the trace adds a guard or a symbol")
        return template

    def _template(self, to_trace: _CallToTrace) -> Template:
        # torch runs a program once before it traces the program. The run fills the fake mode's
        # cache, and a cached tensor may have another storage or offset than a computed tensor. So
        # fxpress also runs a call before it traces the call, unless the cache makes no difference.
        computed = None
        call = to_trace.call
        if not any(value.facts.is_symbolic for value in call.values):
            cached = compat.cached_results(self.mode)
            computed = self._trace(to_trace)
            if _has_storages_of_cache(computed, len(call.storages)):
                return computed
            compat.restore_cached_results(self.mode, cached)
        with compat.without_tracing():
            to_trace.run(self._make_inputs(call), self._make_numbers(call), self._tracer.graph)
        template = self._trace(to_trace)
        if computed is None:
            return template
        input_bytes = [storage.nbytes for storage in call.storages]
        moves = _output_locations(computed, input_bytes) != _output_locations(template, input_bytes)
        return template._replace(is_from_cache=True, moves=moves)

    def _trace(self, to_trace: _CallToTrace) -> Template:
        """Trace a call once, and return its template."""
        tracer, call = self._tracer, to_trace.call
        sizes.forget_numbers(tracer)
        inputs, numbers = self._make_inputs(call), self._make_numbers(call)
        self._inputs += 1
        name = f"input{self._inputs}"
        known = [(t, compat.track(t, tracer, name)) for t in inputs]
        tracked = [sizes.track_number(n, tracer, name, compat.without_stack()) for n in numbers]
        last = tracer.graph._root.prev
        tokens = len(self._functional_mode._tokens)
        tracer.torch_fn_counts = {}
        tracer.torch_fn_metadata = None
        result, wrapped, written = to_trace.run(inputs, numbers, tracer.graph)
        if len(self._functional_mode._tokens) != tokens:
            raise UnsafeError(f"{to_trace.node.target}: the trace has effects")
        added = nodes_after(last, tracer.graph)
        target, meta = to_trace.node.target, to_trace.meta
        builder = TemplateBuilder(
            tracer, self.mode, self._names.of, target, known, tracked, wrapped, meta, call, written
        )
        template = builder.build(added, result)
        for node in (*added, *tracked):
            node.meta = {}  # the template keeps the nodes, but needs no fake tensors
        return template

    def _make_numbers(self, call: Call) -> list[Any]:
        # Create new SymInts, because a tracer distinguishes symbolic numbers by identity.
        env = self._symbols.shape_env
        return [sizes.number_of(n.expression, n.kind, env) for n in call.numbers]

    def _make_inputs(self, call: Call) -> list[Any]:
        """Create fake tensors for `call.values`. They share storages where the Values do."""
        made = []
        env = self._symbols.shape_env
        with compat.outside_of_modes(), sizes.without_guards(env):
            size = self._symbols.size
            storages = {s: self._fakes.storage(size(s.nbytes), None) for s in call.storages}
            for value in call.values:
                facts = self._symbols.facts(value.facts)
                storage = storages[value.storage]
                made.append(self._fakes.tensor(*facts[:5], storage, facts.requires_grad))
        return made

    @property
    def mode(self) -> Any:
        """The program's fake mode."""
        return self._fakes.mode


def _marked_meta(fields: tuple[str, ...]) -> dict[str, Any]:
    """Return meta with a unique value for each key, so that copies of an item are recognizable."""
    meta: dict[str, Any] = {field: _Mark() for field in fields}
    for field, mark in _MARKS.items():
        if field in meta:
            meta[field] = mark
    return meta


def _wrapped(fake: torch.Tensor, value: Value) -> Any:
    """Wrap a fake tensor in a functional tensor; `value` states whether it requires gradients."""
    grad = value.facts.wrapper_requires_grad
    if grad == fake.requires_grad:
        return compat.functional(fake, None)
    with compat.outside_of_modes():
        like = torch.empty(0, device="meta", requires_grad=grad)
    return compat.functional(fake, like)


def _has_storages_of_cache(template: Template, inputs: int) -> bool:
    """Return whether tensors from the fake mode's cache would share storages as in `template`.

    The cache gives each tensor a new storage. There is one exception: if an operator's schema
    declares a view, the result has the input's storage. Results of composite views are not cached.
    """
    known = set(range(inputs))
    for node in template.nodes:
        specs = specs_in(node.value)
        storages = {spec.storage for spec in specs}
        is_new = len(storages) == len(specs) and known.isdisjoint(storages)
        is_new = is_new and all(spec.is_whole for spec in specs)
        if node.target is operator.getitem or compat.is_view(node.target):
            is_new = is_new and compat.is_composite(node.target)
            if not (is_new or storages <= known):
                return False
        elif not is_new:
            return False
        known |= storages
    return True


def _output_locations(template: Template, input_bytes: list[Any]) -> list[tuple[Any, Any]]:
    """Return (offset, bytes of the storage) for each tensor that a call returns."""
    storages = [*input_bytes, *template.fresh]
    return [
        (output.facts.offset, storages[output.storage])
        for output in compat.pytree.tree_leaves(template.result, lambda v: type(v) is Output)
        if type(output) is Output
    ]

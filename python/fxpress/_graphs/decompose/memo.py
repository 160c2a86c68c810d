"""Repeat equal calls while torch traces an entire program.

Equal calls have equal keys (`traced_calls`). torch runs the first call with each key. For later
calls, fxpress adds equal nodes and creates equal tensors, unless an argument was written to.

A result of torch may be a view of a tensor that the call created; a repeated result is not a view.
After a write to a view, functionalization computes it again. So fxpress does not repeat calls whose
views are written to. The first pass, torch's run of the program before the trace, finds them.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from fxpress._base.replacement import Replacement
from fxpress._graphs.decompose import template as kinds
from fxpress._graphs.decompose.traced_calls import (
    DESCRIPTION,
    AddedNode,
    LayerSpec,
    OutputSpec,
    Recipe,
    Recording,
    TracedCall,
    layers_of,
)
from fxpress._graphs.decompose.values import UnsafeError
from fxpress._graphs.trace.fakes import Fakes
from fxpress._graphs.trace.inputs import add_counts
from fxpress._graphs.trace.results import (
    NotRepeatableError,
    Number,
    RepeatedValues,
    Result,
    mapped,
)
from fxpress._torch import decompose as compat
from fxpress._torch import symbols
from fxpress._torch.fakes import give_layout


class Memo:
    """The recorded calls of one full trace, and of torch's run before the trace.

    Attributes:
        instantiated: how many calls of the trace were repeated.
    """

    def __init__(self) -> None:
        self._fakes = Fakes()
        self._nodes: set[Node] = set()
        self._writes = False  # whether a call may write to a tensor
        self._tracer: Any = None
        self._recipes: dict[Any, Recipe | None] = {}
        # In the first pass: call -> [(FunctionalTensor, its fake tensor)] for views in results.
        self._views: dict[Node, list[tuple[Any, Any]]] = {}
        self._unchanged: set[Node] = set()  # calls to whose views the program never writes
        self.instantiated = 0

    def watch(self, graph: Graph) -> None:
        """Set the graph that is traced next. Only calls of torch's operators are repeated."""
        calls = [node for node in graph.nodes if node.op == "call_function"]
        self._writes = any(map(compat.may_write, {node.target for node in calls}))
        self._nodes = {
            node
            for node in calls
            if isinstance(node.target, compat.OpOverload) and compat.is_of_torch(node.target)
        }

    def run(self, original: Any, interpreter: Any, node: Node) -> Any:
        """Repeat the call of a node if possible; if not, run `original`, torch's `run_node`."""
        if node not in self._nodes:
            return original(interpreter, node)
        # The tracer counts calls of torch functions, but must not count the calls by fxpress.
        with compat.DisableTorchFunction():
            self._enter_pass(compat.tracer())
            call = None
            with contextlib.suppress(UnsafeError, NotRepeatableError):
                call = TracedCall(self._tracer, interpreter.env, node)
            recipe = None if call is None else self._recipes.get(call.key)
            if call is not None and recipe is not None and self._may_repeat(node):
                return self._repeat(node, recipe, call)
        if call is None or call.key in self._recipes:
            result = original(interpreter, node)
        else:
            result = self._run(original, interpreter, node, call)
        if self._tracer is None:
            views = _views_in(result)
            if not any(map(compat.was_written, views)):
                self._views[node] = [(view, compat.inner(view)) for view in views]
        return result

    def _enter_pass(self, tracer: Any) -> None:
        if tracer is not self._tracer:  # None in torch's run before the trace
            self._unchanged = {n for n, views in self._views.items() if not _are_changed(views)}
            self._tracer = tracer
            self._recipes, self._views = {}, {}
            self.instantiated = 0

    def _may_repeat(self, node: Node) -> bool:
        """Return whether the program never writes to a view in the results of a call."""
        if self._tracer is None:
            self._views[node] = []
            return True  # if the program writes, no recipe of the first pass has a view
        return not self._writes or node in self._unchanged

    def _run(self, original: Any, interpreter: Any, node: Node, call: TracedCall) -> Any:
        """Let torch run a call, and record a recipe for equal calls if they can be repeated."""
        with compat.DisableTorchFunction():
            recording = Recording(self._fakes, self._tracer, call, node)
        try:
            result = original(interpreter, node)
        finally:
            recording.stop()
        if recording.is_repeatable():  # else, the next equal call may have another trace
            self._recipes[call.key] = None
            refused = contextlib.suppress(UnsafeError, NotRepeatableError)
            with refused, compat.DisableTorchFunction(), compat.without_tracing():
                if self._is_clean(result, call):
                    self._recipes[call.key] = recording.recipe(result)
        return result

    def _is_clean(self, result: Any, call: TracedCall) -> bool:
        """Return whether it makes no difference that the results of a repetition are not views."""
        if self._tracer is not None and not self._writes:
            return True
        # In the first pass, it is not known yet whether the program writes to a view later.
        if self._writes and self._tracer is None and _views_in(result):
            return False
        return compat.have_own_storages(result, call.tensors)

    def _repeat(self, node: Node, recipe: Recipe, call: TracedCall) -> Any:
        """Add the nodes of a recipe to the trace, and return the call's result."""
        tracer = self._tracer
        with compat.without_tracing():
            values = RepeatedValues(self._fakes, call.fakes, call.numbers, recipe.new)
            nodes = dict(zip(recipe.nodes, call.nodes, strict=True))
            source = None if tracer is None else compat.source_in_trace(node)
            for each in recipe.added:
                self._add(each, node, source, nodes, values)
            result = mapped(recipe.result, (OutputSpec,), lambda o: self._output(o, nodes, values))
            for index, layer, known in recipe.layouts:
                _give(known, layers_of(call.tensors[index])[layer], values)
            for number, slot in recipe.slots:
                found = values.numbers[number.number]
                symbols.set_slot(found, slot._replace(node=nodes[slot.node]), tracer)
        if tracer is not None:
            self.instantiated += 1
            tracer.torch_fn_metadata = recipe.function
            add_counts(tracer, recipe.calls)
        return result

    def _add(
        self,
        added: AddedNode,
        call: Node,
        source: Any,
        nodes: dict[Node, Node],
        values: RepeatedValues,
    ) -> None:
        """Add a node to the trace, and to `nodes`, which maps recorded nodes to new nodes."""
        graph = self._tracer.graph
        recorded = added.node
        if recorded is None:
            graph._graph_namespace.create_name(added.candidate, None)
            return
        args = torch.fx.node.map_arg(recorded.args, nodes.__getitem__)
        kwargs = torch.fx.node.map_arg(recorded.kwargs, nodes.__getitem__)
        made = graph.create_node("call_function", recorded.target, args, kwargs, added.candidate)
        nodes[recorded] = made
        value = mapped(added.value, (Result, Number), values.value)
        for key, how, item in added.meta:
            made.meta[key] = self._item(key, how, item, call, source, value)
        if compat.EAGER_INPUTS in made.meta:
            compat.set_eager_inputs(made)

    def _item(self, key: str, how: str, item: Any, call: Node, source: Any, value: Any) -> Any:
        """Return an item of the meta of a new node; `how` and `item` are from the recipe."""
        if how is kinds.VALUE:
            return value
        if how is DESCRIPTION:
            return self._fakes.description(value)
        if how is kinds.COPIED or how is kinds.STACK:
            return copy.copy(call.meta[key])
        if how is kinds.COPIED_LITERAL:
            return copy.copy(item)
        if how is kinds.SOURCE:
            return [source]
        return compat.next_sequence_number() if how is kinds.SEQUENCE else item

    def _output(self, output: OutputSpec, nodes: dict[Node, Node], values: RepeatedValues) -> Any:
        fake = values.create(output.result)
        if output.node is not None:
            compat.set_node(fake, nodes[output.node], self._tracer)
        made = compat.functional(fake, None)
        for layer, known in zip(layers_of(made), output.layers, strict=True):
            if known is not None:
                _give(known, layer, values)
        return made


def _give(known: LayerSpec, layer: Any, values: RepeatedValues) -> None:
    """Give a tensor the symbolic sizes and the layout of a recorded tensor."""
    parts = (known.numbers, known.elements)
    numbers, elements = mapped(parts, (Number,), values.value)
    give_layout(known.layout, layer, (0, *numbers), elements)


def _views_in(result: Any) -> list[Any]:
    """Return the tensors in a result that functionalization treats as views."""
    return [
        tensor
        for tensor in compat.pytree.tree_leaves(result)
        if type(tensor) is compat.FunctionalTensor and not compat.is_base(tensor)
    ]


def _are_changed(views: list[tuple[Any, Any]]) -> bool:
    """Return whether the program wrote to one of the tensors in `views` or to its base."""
    return any(compat.was_written(t) or compat.was_changed(t, fake) for t, fake in views)


class _Active(threading.local):
    memo: Memo | None = None


_active = _Active()


def _run_node(original: Any, interpreter: Any, node: Node) -> Any:
    memo = _active.memo
    if memo is None:
        return original(interpreter, node)
    return memo.run(original, interpreter, node)


_replaced_run_node = Replacement(*compat.RUN_NODE, _run_node)


@contextlib.contextmanager
def use_memo(memo: Memo) -> Iterator[None]:
    """Let torch's traces in this thread use `memo` within the block."""
    outer, _active.memo = _active.memo, memo
    try:
        with _replaced_run_node.block():
            yield
    finally:
        _active.memo = outer

"""Repeat equal calls within a full trace of a program with symbolic sizes.

The nodes that torch adds for a call depend on more than the sizes of its arguments: on which
SymInts are the same object, which SymInts have nodes, and what torch knows about the layout of each
tensor. The key of a call contains all of these. torch runs the first call with each key, and
fxpress records the nodes that it adds. For later calls with this key, fxpress adds equal nodes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from fxpress._graphs.decompose.keys import fields_of
from fxpress._graphs.decompose import template as kinds
from fxpress._graphs.decompose.memo import CallMemo, meta_of_instance, run_noting_names, views_in
from fxpress._graphs.decompose.reading import MetaItems, nodes_after
from fxpress._graphs.decompose.values import UnsafeError
from fxpress._graphs.trace.fakes import Fakes, is_simple
from fxpress._graphs.trace.inputs import add_counts, counted_since
from fxpress._graphs.trace.results import (
    CONSTANTS,
    SEQUENCES,
    CallValues,
    NotRepeatableError,
    Number,
    RepeatedValues,
    Result,
    mapped,
    numbers_of,
)
from fxpress._torch import decompose as compat
from fxpress._torch import symbols
from fxpress._torch.fakes import UNDECIDED, Layout, known_layout
from fxpress._torch.tracing import cache_counts, version_of


_DESCRIPTION = "description"  # how a node gets its `tensor_meta`: from its value


class _Call:
    """The tensors, symbolic ints and nodes of a call's arguments, and its key."""

    def __init__(self, tracer: Any, env: dict[Node, Any], node: Node) -> None:
        self._tracer = tracer
        self._indexes: dict[int, int] = {}
        self._places: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._key: list[Any] = [node.target, fields_of(node.meta, annotated=True), *node.kwargs]
        self.tensors: list[Any] = []
        self.numbers: list[torch.SymInt] = []
        self.nodes: dict[Node, int] = {}
        todo = [*node.args, *node.kwargs.values()][::-1]
        while todo:
            value = todo.pop()
            if type(value) is Node:
                value = env[value]
            kind = type(value)
            if kind is compat.FunctionalTensor:
                self._add_tensor(value)
            elif kind in CONSTANTS:
                self._key += (kind, value)
            elif kind is float:
                self._key.append(repr(value))  # -0.0 differs from 0.0, and nan equals nan
            elif kind in SEQUENCES:
                self._key.append((kind, len(value)))
                todo += value[::-1]
            elif kind is torch.SymInt:
                self._add_number(value)
            else:
                raise UnsafeError(f"an argument of a call is of type {kind.__name__}")
        if not self.tensors:
            raise UnsafeError("a call has no tensors")

    @property
    def key(self) -> tuple[Any, ...]:
        """All on which the trace of the call depends."""
        return (*self._key, version_of(compat.inner(self.tensors[0])))

    @property
    def inner(self) -> list[Any]:
        """The fake tensors of the arguments."""
        return [compat.inner(tensor) for tensor in self.tensors]

    def _add_tensor(self, tensor: Any) -> None:
        number = self._indexes.get(id(tensor))
        if number is not None:
            self._key.append(-1 - number)
            return
        if compat.was_written(tensor):  # reading its fake tensor would add nodes
            raise UnsafeError("an input of a call was written to")
        fake = compat.inner(tensor)
        bits = (fake.is_inference(), fake.is_conj(), fake.is_neg(), fake.is_quantized)
        if any(bits) or not is_simple(fake):
            raise UnsafeError("an input of a call is not a simple tensor")
        self._indexes[id(tensor)] = len(self.tensors)
        self.tensors.append(tensor)
        storage = fake.untyped_storage()._cdata
        place = self._storages.setdefault(storage, len(self._storages))
        self._key += (place, tensor.dtype, tensor.device, tensor.requires_grad, fake.requires_grad)
        self._key.append(symbols.comparable(fake.untyped_storage().nbytes()))
        if self._tracer is not None:
            node, constant = compat.node_of(fake, self._tracer)
            if node is None or constant is not None:
                raise UnsafeError("an input of a call is a constant")
            self._key.append(self._place(node))
        for layer in layers_of(tensor):
            known = known_layout(layer)
            if known & UNDECIDED:
                raise UnsafeError("torch does not know the layout of a tensor")
            sizes, strides, offset = numbers_of(layer)
            self._key += (known, len(sizes))
            for each in (*sizes, *strides, offset, *elements_of(layer)):
                self._add_number(each)

    def _add_number(self, number: Any) -> None:
        if type(number) is not torch.SymInt:
            self._key.append(number)
            return
        place = self._places.setdefault(id(number.node), len(self.numbers))
        self._key.append((place,))
        if place == len(self.numbers):
            self.numbers.append(number)
            self._key += (number.node._expr, self.slot(number))

    def slot(self, number: Any) -> Any:
        """Return how the trace finds the node of a symbolic int, with the place of the node."""
        if self._tracer is None:
            return None
        slot = symbols.slot_of(number, self._tracer)
        return None if slot is None else slot._replace(node=self._place(slot.node))

    def _place(self, node: Node) -> int:
        return self.nodes.setdefault(node, len(self.nodes))


def layers_of(tensor: Any) -> tuple[Any, Any, Any]:
    """Return the three tensors of which a FunctionalTensor consists; the fake tensor is first."""
    return compat.inner(tensor), tensor.elem, tensor


def elements_of(layer: Any) -> tuple[Any, ...]:
    """Return the number of elements if torch has computed it, in a tuple."""
    return (layer.numel(),) if known_layout(layer) & 1 else ()


class _Layer(NamedTuple):
    """The symbolic sizes of a tensor, and what torch knows about its layout."""

    layout: Any
    numbers: Any  # sizes, strides, offset; a Number for each symbolic int
    elements: Any  # the number of elements; 1 if torch does not know it


class _Output(NamedTuple):
    """A functional tensor that a call returns."""

    node: Node | None
    result: Result
    layers: list[_Layer | None]


class _Added(NamedTuple):
    """A node that a call adds. A node without users only reserves its name."""

    candidate: str  # the name that torch proposed
    node: Node | None  # the recorded node; None: the node has no users
    meta: list[tuple[str, str, Any]]
    value: Any


class _Recipe(NamedTuple):
    """What torch's run of a call has changed."""

    nodes: dict[Node, int]  # the nodes of the arguments
    added: list[_Added]
    slots: list[tuple[Number, Any]]
    inputs: list[tuple[int, int, _Layer]]  # (tensor, layer) about which torch has learnt more
    result: Any
    new: list[torch.SymInt]  # the symbolic ints that no argument had
    calls: list[tuple[Any, int]]  # (function of torch, number of calls)
    function: Any  # the last function of torch that was called


class SymbolicMemo(CallMemo):
    """The calls of one full trace, and of torch's run before the trace."""

    def __init__(self) -> None:
        super().__init__()
        self._fakes = Fakes()
        self._writes = False
        self._forget()

    def watch(self, graph: Graph) -> None:
        super().watch(graph)
        targets = {node.target for node in graph.nodes if node.op == "call_function"}
        self._writes = any(map(compat.may_write, targets))

    def _forget(self) -> None:
        self._recipes: dict[Any, _Recipe | None] = {}

    def _repeat(self, env: dict[Node, Any], node: Node) -> tuple[bool, Any]:
        call = _Call(self._tracer, env, node)
        key = call.key
        recipe = self._recipes.get(key)
        if recipe is not None and (not self._writes or self._may_instantiate(node)):
            return True, self._instantiate(node, recipe, call)
        return False, None if key in self._recipes else (call, key)

    def _run(self, original: Any, interpreter: Any, node: Node, call: _Call, key: Any) -> Any:
        tracer = self._tracer
        env = call.inner[0].fake_mode.shape_env
        last = None if tracer is None else tracer.graph._root.prev
        counts = {} if tracer is None else dict(tracer.torch_fn_counts)
        names = None if tracer is None else compat.Candidates(tracer)
        before = (cache_counts()[0], symbols.state(env))
        inner, layouts = call.inner, [*map(known_layouts, call.tensors)]
        slots = [*map(call.slot, call.numbers)]
        result = run_noting_names(names, original, interpreter, node)
        if (cache_counts()[0], symbols.state(env)) != before:
            return result  # the next equal call may have another trace
        function = None if tracer is None else tracer.torch_fn_metadata
        self._recipes[key] = None
        refused = contextlib.suppress(UnsafeError, NotRepeatableError)
        with refused, compat.DisableTorchFunction(), compat.without_tracing():
            if any(map(compat.was_changed, call.tensors, inner)):
                raise UnsafeError("the call writes to an argument")
            # Without writes, the trace does not use which tensors functionalization knows as views.
            uses_views = self._writes or tracer is None
            if uses_views and not compat.have_own_storages(result, call.tensors):
                raise UnsafeError("the call returns a view of an argument")
            if self._writes and tracer is None and views_in(result):
                raise UnsafeError("the call returns a view")
            recording = _Recording(self._fakes, tracer, call, names, node)
            calls = [] if tracer is None else counted_since(tracer.torch_fn_counts, counts)
            added = [] if tracer is None else nodes_after(last, tracer.graph)
            recipe = recording.recipe(added, layouts, slots, result)
            self._recipes[key] = recipe._replace(calls=calls, function=function)
        return result

    def _instantiate(self, node: Node, recipe: _Recipe, call: _Call) -> Any:
        tracer = self._tracer
        with compat.without_tracing():
            values = RepeatedValues(self._fakes, call.inner, call.numbers, recipe.new)
            nodes = dict(zip(recipe.nodes, call.nodes, strict=True))
            source = None if tracer is None else compat.source_in_trace(node)
            for each in recipe.added:
                self._add(each, node, source, nodes, values)
            result = mapped(recipe.result, (_Output,), lambda o: self._output(o, nodes, values))
            for index, layer, known in recipe.inputs:
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
        self, added: _Added, call: Node, source: Any, nodes: dict[Node, Node], values: RepeatedValues
    ) -> None:
        graph = self._tracer.graph
        recorded = added.node
        if recorded is None:
            graph._graph_namespace.create_name(added.candidate, None)
            return
        args = torch.fx.node.map_arg(recorded.args, nodes.__getitem__)
        kwargs = torch.fx.node.map_arg(recorded.kwargs, nodes.__getitem__)
        made = graph.create_node("call_function", recorded.target, args, kwargs, added.candidate)
        value = mapped(added.value, (Result, Number), lambda item: _made(item, values))
        made.meta = self._meta(added.meta, call, source, value)
        nodes[recorded] = made

    def _meta(
        self, items: list[tuple[str, str, Any]], call: Node, source: Any, value: Any
    ) -> dict[str, Any]:
        meta = {}
        for key, how, item in items:
            if how is kinds.VALUE:
                meta[key] = value
            elif how is _DESCRIPTION:
                meta[key] = self._fakes.description(value)
            else:
                meta[key] = meta_of_instance(key, how, item, call, source)
        return meta

    def _output(self, output: _Output, nodes: dict[Node, Node], values: RepeatedValues) -> Any:
        fake = values.create(output.result)
        if output.node is not None:
            compat.set_node(fake, nodes[output.node], self._tracer)
        made = compat.functional(fake, None)
        for layer, known in zip(layers_of(made), output.layers, strict=True):
            if known is not None:
                _give(known, layer, values)
        return made


def known_layouts(tensor: Any) -> list[int]:
    """Return what torch knows about the layouts of the three tensors of a FunctionalTensor."""
    return [*map(known_layout, layers_of(tensor))]


def _made(item: Any, values: RepeatedValues) -> Any:
    return values.numbers[item.number] if type(item) is Number else values.create(item)


def _give(known: _Layer, layer: Any, values: RepeatedValues) -> None:
    find: Callable[[Number], Any] = lambda number: values.numbers[number.number]
    numbers = mapped(known.numbers, (Number,), find)
    elements = mapped(known.elements, (Number,), find)
    known.layout.give(layer, (0, *numbers), elements)


def _tensors(result: Any) -> list[Any]:
    return [t for t in compat.pytree.tree_leaves(result) if type(t) is compat.FunctionalTensor]


class _Recording:
    """Describes what torch's run of a call has changed."""

    def __init__(self, fakes: Fakes, tracer: Any, call: _Call, names: Any, node: Node) -> None:
        self._tracer, self._call, self._names = tracer, call, names
        self._values = CallValues(fakes, call.inner, call.numbers)
        meta = {field: node.meta[field] for field in fields_of(node.meta, annotated=True)}
        self._meta = MetaItems(node.target, meta, tracer)

    def recipe(
        self, added: list[Node], layouts: list[list[int]], slots: list[Any], result: Any
    ) -> _Recipe:
        call = self._call
        nodes = dict(call.nodes)
        changed = [
            (index, number, layer)
            for index, tensor in enumerate(call.tensors)
            for number, layer in enumerate(layers_of(tensor))
            if known_layout(layer) != layouts[index][number]
        ]
        layers = [layer for _, _, layer in changed]
        layers += [layer for tensor in _tensors(result) for layer in layers_of(tensor)]
        found: dict[int, Any] = {}
        if self._tracer is not None:
            for number in (*call.numbers, *_numbers_in(layers)):
                slot = symbols.slot_of(number, self._tracer)
                if slot is not None:
                    found[id(number.node)] = (number, slot)
            for number, before in zip(call.numbers, slots, strict=True):
                if call.slot(number) == before:
                    found.pop(id(number.node), None)
        live = _live(added, [slot.node for _, slot in found.values()])
        if any(each not in nodes and each not in live for n in live for each in n.all_input_nodes):
            raise NotRepeatableError
        kept = [self._added(node, node in live) for node in added]
        outputs = self._result(result)
        known = [(index, number, self._layer(layer)) for index, number, layer in changed]
        places = []
        for number, slot in found.values():
            if slot.node not in nodes and slot.node not in live:
                raise NotRepeatableError
            places.append((self._values.number(number), slot))
        return _Recipe(nodes, kept, places, known, outputs, self._values.new_numbers, [], None)

    def _added(self, node: Node, is_live: bool) -> _Added:
        candidate = self._names.of(node.name)
        if not is_live:
            return _Added(candidate, None, [], None)
        described: Any = None
        value = node.meta.get("val")
        if type(value) is torch.SymInt:
            described = self._values.number(value)
        elif value is not None:
            described = self._values.result(value)
        meta = [self._item(key, item, described) for key, item in node.meta.items()]
        return _Added(candidate, node, meta, described)

    def _item(self, key: str, item: Any, value: Any) -> tuple[str, str, Any]:
        if key == "tensor_meta" and type(value) is Result:
            return key, _DESCRIPTION, None
        described: tuple[str, str, Any] = self._meta.item(key, item, value)
        if described[1] is kinds.COUNTED or key == compat.EAGER_INPUTS:
            raise NotRepeatableError
        return described

    def _result(self, result: Any) -> Any:
        if type(result) in (list, tuple):
            return type(result)([self._result(each) for each in result])
        if result is None:
            return None
        if type(result) is not compat.FunctionalTensor or compat.was_written(result):
            raise NotRepeatableError
        if result.requires_grad:
            raise NotRepeatableError
        fake = compat.inner(result)
        node, constant = None, None
        if self._tracer is not None:
            node, constant = compat.node_of(fake, self._tracer)
            if node is None:
                raise NotRepeatableError
        if constant is not None or fake.constant is not None:
            raise NotRepeatableError
        described = self._values.result(fake)
        return _Output(node, described, [self._layer(layer) for layer in layers_of(result)])

    def _layer(self, layer: Any) -> _Layer | None:
        known = known_layout(layer)
        if known & UNDECIDED:
            raise NotRepeatableError
        if not any(_numbers_in([layer])):
            return None
        for each in _numbers_in([layer]):
            self._values.number(each)
        elements = elements_of(layer)
        numbers = self._values.argument(numbers_of(layer))
        return _Layer(Layout(layer), numbers, self._values.argument(elements[0]) if elements else 1)


def _numbers_in(layers: list[Any]) -> list[torch.SymInt]:
    """Return the symbolic ints of tensors."""
    return [
        each
        for layer in layers
        for each in (*layer.shape, *layer.stride(), layer.storage_offset(), *elements_of(layer))
        if type(each) is torch.SymInt
    ]


def _live(added: list[Node], needed: list[Node]) -> set[Node]:
    """Return the nodes of `added` that are not numbers, are `needed`, or are used by such nodes."""
    live = set()
    wanted = set(needed)
    for node in reversed(added):
        if node in wanted or type(node.meta.get("val")) not in symbols.KINDS:
            live.add(node)
            wanted.update(node.all_input_nodes)
    return live

"""Record what torch adds to a trace when it runs a call, and compute the keys of calls.

The nodes that torch adds for a call do not depend only on the sizes of the arguments. They also
depend on which SymInts are the same object, which SymInts have nodes, and what torch has computed
about the layout of each tensor. The key of a call contains all of these facts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fxpress._graphs.decompose import template as kinds
from fxpress._graphs.decompose.keys import fields_of
from fxpress._graphs.decompose.reading import MetaItems, nodes_after
from fxpress._graphs.trace.fakes import Fakes, is_simple
from fxpress._graphs.trace.inputs import counted_since
from fxpress._graphs.trace.results import (
    CallValues,
    NotRepeatableError,
    Number,
    Result,
    add_arguments,
    numbers_of,
    symbolic,
)
from fxpress._torch import decompose as compat
from fxpress._torch import symbols
from fxpress._torch.fakes import UNDECIDED, known_layout, layout_of
from fxpress._torch.tracing import cache_misses

DESCRIPTION = "description"  # how a node gets its `tensor_meta`: from its value


class TracedCall:
    """The arguments of an operator call in a trace, or in torch's run before the trace.

    Attributes:
        key: all facts on which torch's run of the call depends.
        tensors: the distinct FunctionalTensors among the arguments.
        fakes: the fake tensors in `tensors`.
        layouts: `known_layout` of the three tensors (`layers_of`) of each FunctionalTensor.
        numbers: the distinct symbolic ints of the arguments and of their sizes.
        slots: for each of `numbers`, how the trace finds its node; see `slot`.
        nodes: node of an argument or of a symbolic int -> its index.
    """

    def __init__(self, tracer: Any, env: dict[Node, Any], node: Node) -> None:
        self._tracer = tracer
        self._indexes: dict[int, int] = {}
        self._places: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._key: list[Any] = [node.target, fields_of(node.meta, annotated=True)]
        self.tensors: list[Any] = []
        self.fakes: list[Any] = []
        self.layouts: list[int] = []
        self.numbers: list[torch.SymInt] = []
        self.slots: list[Any] = []
        self.nodes: dict[Node, int] = {}
        add_arguments(node, env, self._key, self._add)
        if not self.tensors:
            raise NotRepeatableError
        self.shape_env = self.fakes[0].fake_mode.shape_env
        self.key = (*self._key, *symbols.state(self.shape_env))

    def _add(self, value: Any) -> bool:
        if type(value) is compat.FunctionalTensor:
            self._add_tensor(value)
            return True
        self._add_number(value)
        return type(value) is torch.SymInt

    def _add_tensor(self, tensor: Any) -> None:
        number = self._indexes.get(id(tensor))
        if number is not None:
            self._key.append(-1 - number)
            return
        if compat.was_written(tensor):  # reading its fake tensor would add nodes
            raise NotRepeatableError
        fake = compat.inner(tensor)
        bits = (fake.is_inference(), fake.is_conj(), fake.is_neg(), fake.is_quantized)
        if any(bits) or not is_simple(fake) or fake.constant is not None:
            raise NotRepeatableError
        self._indexes[id(tensor)] = len(self.tensors)
        self.tensors.append(tensor)
        self.fakes.append(fake)
        storage = fake.untyped_storage()._cdata
        place = self._storages.setdefault(storage, len(self._storages))
        self._key += (place, tensor.dtype, tensor.device, tensor.requires_grad, fake.requires_grad)
        self._key.append(symbols.comparable(fake.untyped_storage().nbytes()))
        if self._tracer is not None:
            node, constant = compat.node_of(fake, self._tracer)
            if node is None or constant is not None:
                raise NotRepeatableError
            self._key.append(self._place(node))
        for layer in layers_of(tensor):
            known = known_layout(layer)
            if known & UNDECIDED:
                raise NotRepeatableError
            self.layouts.append(known)
            sizes, strides, offset = numbers_of(layer)
            self._key += (known, len(sizes))
            for each in (*sizes, *strides, offset, *elements_of(layer, known)):
                self._add_number(each)

    def _add_number(self, number: Any) -> None:
        if type(number) is not torch.SymInt:
            self._key.append(number)
            return
        place = self._places.setdefault(id(number.node), len(self.numbers))
        self._key.append((place,))
        if place == len(self.numbers):
            self.numbers.append(number)
            self.slots.append(self.slot(number))
            self._key += (number.node._expr, self.slots[-1])

    def slot(self, number: Any) -> Any:
        """Return how the trace finds a number's node: a Slot with the node's index, or None."""
        if self._tracer is None:
            return None
        slot = symbols.slot_of(number, self._tracer)
        return None if slot is None else slot._replace(node=self._place(slot.node))

    def _place(self, node: Node | None) -> int:
        if node is None:
            raise NotRepeatableError
        return self.nodes.setdefault(node, len(self.nodes))


def layers_of(tensor: Any) -> tuple[Any, Any, Any]:
    """Return the three tensors of which a FunctionalTensor consists; the fake tensor is first."""
    return compat.inner(tensor), tensor.elem, tensor


def elements_of(layer: Any, known: int) -> tuple[Any, ...]:
    """Return (number of elements,) if torch has computed it, a bit of `known`; else ()."""
    return (layer.numel(),) if known & 1 else ()


class LayerSpec(NamedTuple):
    """The symbolic sizes of a tensor, and the facts about its layout that torch has computed."""

    layout: Any
    numbers: Any  # sizes, strides, offset; a Number for each symbolic int
    elements: Any  # the number of elements; 1 if torch has not computed it


class OutputSpec(NamedTuple):
    """A tensor that a call returns."""

    node: Node | None  # its node in the recorded trace; None: torch ran the call without a trace
    result: Result  # its fake tensor
    layers: list[LayerSpec | None]  # one for each of `layers_of`; None: no symbolic sizes


class AddedNode(NamedTuple):
    """A node that a call adds to the trace."""

    candidate: str  # the name that torch proposed
    node: Node | None  # the recorded node; None: it has no users, and only its name is reserved
    meta: list[tuple[str, str, Any]]  # as in `TemplateNode.meta`
    value: Any  # its value, with a Result for each tensor, and a Number for a symbolic int


class Recipe(NamedTuple):
    """What torch's run of a call has changed."""

    nodes: dict[Node, int]  # `TracedCall.nodes`
    added: list[AddedNode]
    slots: list[tuple[Number, symbols.Slot]]  # how the trace finds nodes of symbolic ints
    layouts: list[tuple[int, int, Any]]  # (argument, layer, what torch computed about the layer)
    result: Any  # the call's result, with an OutputSpec for each tensor
    new: list[torch.SymInt]  # the symbolic ints that no argument had
    calls: list[tuple[Any, int]]  # (function of torch, number of its calls)
    function: Any  # the last function of torch that was called


class Recording:
    """Records what torch changes when it runs one call, until `stop` is called."""

    def __init__(self, fakes: Fakes, tracer: Any, call: TracedCall, node: Node) -> None:
        self._tracer, self._call = tracer, call
        self._values = CallValues(fakes, call.fakes, call.numbers)
        meta = {field: node.meta[field] for field in fields_of(node.meta, annotated=True)}
        self._meta = MetaItems(node.target, meta, tracer)
        self._nodes = dict(call.nodes)
        self._before = (cache_misses(), symbols.state(call.shape_env))
        if tracer is not None:
            self._last = tracer.graph._root.prev
            self._counts = dict(tracer.torch_fn_counts)
            self._names = compat.Candidates(tracer)

    def stop(self) -> None:
        """Stop recording names, after torch has run the call."""
        if self._tracer is not None:
            self._names.stop()

    def is_repeatable(self) -> bool:
        """Return whether the call changed no state on which the traces of equal calls depend."""
        return self._before == (cache_misses(), symbols.state(self._call.shape_env))

    def recipe(self, result: Any) -> Recipe:
        """Return the recipe of the call; raise NotRepeatableError or UnsafeError if it has none."""
        call = self._call
        if any(map(compat.was_changed, call.tensors, call.fakes)):
            raise NotRepeatableError
        given = enumerate(layer for tensor in call.tensors for layer in layers_of(tensor))
        layers = [(i, layer) for i, layer in given if known_layout(layer) != call.layouts[i]]
        calls: list[tuple[Any, int]] = []
        added: list[AddedNode] = []
        slots: list[tuple[torch.SymInt, symbols.Slot]] = []
        function = None
        if self._tracer is not None:
            function = self._tracer.torch_fn_metadata
            calls = counted_since(self._tracer.torch_fn_counts, self._counts)
            leaves = compat.pytree.tree_leaves(result)
            returned = [
                x for t in leaves if type(t) is compat.FunctionalTensor for x in layers_of(t)
            ]
            slots = self._changed_slots([*[layer for _, layer in layers], *returned])
            added = self._added([slot.node for _, slot in slots])
        described = self._result(result)
        layouts = [(*divmod(place, 3), self._layer(layer)) for place, layer in layers]
        named = [(self._values.number(number), slot) for number, slot in slots]
        new = self._values.new_numbers
        if any(symbols.expression_of(number, call.shape_env) is None for number in new):
            raise NotRepeatableError  # an unbacked symbol belongs to one tensor
        return Recipe(self._nodes, added, named, layouts, described, new, calls, function)

    def _changed_slots(self, layers: list[Any]) -> list[tuple[torch.SymInt, symbols.Slot]]:
        """Return (number, Slot set by the call) for numbers of arguments and of `layers`."""
        call = self._call
        known = {id(n.node): slot for n, slot in zip(call.numbers, call.slots, strict=True)}
        found = {}
        for number in (*call.numbers, *(n for layer in layers for n in _numbers_in(layer))):
            place = id(number.node)
            slot = symbols.slot_of(number, self._tracer)
            if slot is not None and (place not in known or call.slot(number) != known[place]):
                found[place] = (number, slot)
        return [*found.values()]

    def _added(self, needed: list[Node]) -> list[AddedNode]:
        """Describe the nodes that the call added; nodes in `needed` are kept without users, too."""
        nodes = nodes_after(self._last, self._tracer.graph)
        live = set()
        wanted = set(needed)
        for node in reversed(nodes):
            if node in wanted or type(node.meta.get("val")) not in symbols.KINDS:
                live.add(node)
                wanted.update(node.all_input_nodes)
        if any(node not in live and node not in self._nodes for node in wanted):
            raise NotRepeatableError  # it uses a node of another call
        return [self._node(node, node in live) for node in nodes]

    def _node(self, node: Node, is_live: bool) -> AddedNode:
        candidate = self._names.of(node.name)
        if not is_live:
            return AddedNode(candidate, None, [], None)
        if node.op != "call_function":
            raise NotRepeatableError
        described: Any = None
        value = node.meta.get("val")
        if type(value) is torch.SymInt:
            described = self._values.number(value)
        elif value is not None:
            described = self._values.result(value)
        meta = [self._item(key, item, described) for key, item in node.meta.items()]
        return AddedNode(candidate, node, meta, described)

    def _item(self, key: str, item: Any, value: Any) -> tuple[str, str, Any]:
        if key == "tensor_meta" and type(value) is Result:
            return key, DESCRIPTION, None
        described: tuple[str, str, Any] = self._meta.item(key, item, value)
        if described[1] is kinds.COUNTED:
            raise NotRepeatableError
        return described

    def _result(self, result: Any) -> Any:
        if type(result) in (list, tuple):
            return type(result)([self._result(each) for each in result])
        if result is None:
            return None
        if type(result) is not compat.FunctionalTensor or compat.was_written(result):
            raise NotRepeatableError
        fake = compat.inner(result)
        node, constant = None, fake.constant
        if self._tracer is not None and constant is None:
            node, constant = compat.node_of(fake, self._tracer)
        if result.requires_grad or constant is not None:
            raise NotRepeatableError
        layers = map(self._layer, layers_of(result))
        return OutputSpec(node, self._values.result(fake), [*layers])

    def _layer(self, layer: Any) -> LayerSpec | None:
        known = known_layout(layer)
        if known & UNDECIDED:
            raise NotRepeatableError
        numbers = _numbers_in(layer)
        if not numbers:
            return None
        for number in numbers:
            self._values.number(number)
        (elements,) = elements_of(layer, known) or (1,)
        argument = self._values.argument
        return LayerSpec(layout_of(layer), argument(numbers_of(layer)), argument(elements))


def _numbers_in(layer: Any) -> tuple[torch.SymInt, ...]:
    """Return the symbolic ints of a tensor."""
    sizes, strides, offset = numbers_of(layer)
    return symbolic((*sizes, *elements_of(layer, known_layout(layer))), strides, offset)

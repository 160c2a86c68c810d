"""Trace a call by torch on metadata, and record what it did."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fxpress._decompose import template as kinds
from fxpress._decompose.keys import Call, mapped
from fxpress._decompose.numbers import Entry, needed_numbers
from fxpress._decompose.parts import parts_of
from fxpress._decompose.symbols import Symbols, without_numbers
from fxpress._decompose.template import (
    NumberOutput,
    NumberSpec,
    Output,
    Template,
    TemplateNode,
    TensorSpec,
)
from fxpress._decompose.values import Facts, Number, UnsafeError, Value, facts_of, size_of
from fxpress._torch import decompose as compat
from fxpress._torch import symbols as sizes


class _Mark:
    """Stands for an item of meta that torch copies."""

    def __copy__(self) -> _Mark:
        return self


_STACK = "the stack trace of the node"
_MARKS: dict[str, Any] = {
    "stack_trace": _STACK,
    "custom": {"the annotations of the node": True},
    "nn_module_stack": {"the modules of the node": ("", "")},
}


class _Traced(NamedTuple):
    """A call to trace.

    Attributes:
        target, args, kwargs, call, environment: as for `Recorder.record`.
        meta: meta by which copies of its items can be told.
    """

    target: Any
    args: Any
    kwargs: Any
    call: Call
    environment: dict[Node, Any]
    meta: dict[str, Any]

    def run(
        self, inputs: list[Any], numbers: list[Any], graph: Any
    ) -> tuple[Any, dict[Value, Any]]:
        """Run the call; return its result, and the tensors that it was given by their values.

        Args:
            inputs: fake tensors, by number.
            numbers: SymInts and their like, by number.
            graph: an object whose identity stands for that of the graph of the call.

        Raises:
            UnsafeError: the call raised an exception, or changed an input.
        """
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
    """Records calls within one trace of torch.

    Args:
        tracer: the tracer of the trace.
        functional_mode: its functionalization.
        fakes: makes tensors of the program's fake mode.
        symbols: makes its numbers.
    """

    def __init__(
        self, tracer: Any, functional_mode: Any, fakes: compat.Fakes, symbols: Symbols
    ) -> None:
        self._tracer = tracer
        self._functional_mode = functional_mode
        self._fakes = fakes
        self._symbols = symbols
        self._candidates: dict[str, str] = {}
        self._inputs = 0
        namespace = tracer.graph._graph_namespace
        create_name = namespace.create_name

        def note_candidate(candidate: str, obj: Any) -> str:
            name: str = create_name(candidate, obj)
            self._candidates[name] = candidate
            return name

        namespace.create_name = note_candidate

    def record(
        self,
        target: Any,
        args: Any,
        kwargs: Any,
        call: Call,
        environment: dict[Node, Any],
        fields: tuple[str, ...],
    ) -> Template:
        """Trace a call.

        Args:
            target, args, kwargs: as in the old graph.
            call: the call's tensors.
            environment: node of the old graph -> its value in the new one.
            fields: what the node's meta has that reaches the trace.

        Raises:
            UnsafeError: the trace did something that a stamp would not repeat.
        """

        traced = _Traced(target, args, kwargs, call, environment, _marked(fields))
        before = sizes.state(self._symbols.shape_env)
        template = self._template(traced)
        if sizes.state(self._symbols.shape_env) != before:
            raise UnsafeError(f"{target}: the trace adds a guard or a symbol")
        return template

    def _template(self, traced: _Traced) -> Template:
        # torch runs a program once before it traces it. That fills the fake mode's cache, and a
        # tensor from the cache may lie elsewhere in its storage than one that was computed. So a
        # call is run before it is traced, too, unless all tensors begin where their storages do.
        call = traced.call
        if all(value.facts.offset == 0 and not value.facts.is_symbolic for value in call.values):
            cached = compat.cached_results(self.mode)
            template = self._trace(traced)
            if all(_begins_its_storage(node.value) for node in template.nodes):
                return template
            compat.restore_cached_results(self.mode, cached)
        with compat.without_tracing():
            traced.run(self._make_inputs(call), self._make_numbers(call), self._tracer.graph)
        return self._trace(traced)

    def _trace(self, traced: _Traced) -> Template:
        """Trace a call, and return what that did."""
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
        reading = _Reading(self, traced.target, known, tracked, wrapped, traced.meta, call)
        return reading.template(added, result)

    def _make_numbers(self, call: Call) -> list[Any]:
        # They are no sizes of tensors: a tracer tells numbers apart by their identity.
        env = self._symbols.shape_env
        return [sizes.number_of(n.expression, n.kind, env) for n in call.numbers]

    def _make_inputs(self, call: Call) -> list[Any]:
        """Make a fake tensor for each value of a call; they share storages as the values do."""
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

    def candidate(self, name: str) -> str:
        """Return what a node's name was made from."""
        return self._candidates[name]

    @property
    def tracer(self) -> Any:
        """The tracer of the trace."""
        return self._tracer

    @property
    def mode(self) -> Any:
        """The program's fake mode."""
        return self._fakes.mode


def _marked(fields: tuple[str, ...]) -> dict[str, Any]:
    """Return meta for a traced call by which copies of its items can be told."""
    meta: dict[str, Any] = {field: _Mark() for field in fields}
    for field, mark in _MARKS.items():
        if field in meta:
            meta[field] = mark
    return meta


def _wrapped(fake: torch.Tensor, value: Value) -> Any:
    """Return a tensor as a trace sees it."""
    grad = value.facts.wrapper_requires_grad
    if grad == fake.requires_grad:
        return compat.functional(fake, None)
    with compat.outside_of_modes():
        like = torch.empty(0, device="meta", requires_grad=grad)
    return compat.functional(fake, like)


class _Reading:
    """Makes a template of the nodes that a trace added."""

    def __init__(
        self,
        recorder: Recorder,
        target: Any,
        inputs: Sequence[tuple[Any, Node]],
        numbers: list[Node],
        wrapped: dict[Value, Any],
        meta: dict[str, Any],
        call: Call,
    ) -> None:
        self._recorder = recorder
        self._target = target
        self._given = wrapped
        self._meta = meta
        self._env = recorder.mode.shape_env
        self._is_symbolic = bool(numbers)
        self._given_numbers = {node: -1 - len(inputs) - i for i, node in enumerate(numbers)}
        self._numbers: dict[Any, int] = {node: -1 - i for i, (_, node) in enumerate(inputs)}
        self._storages: dict[int, int] = {}
        self._kept: list[Any] = []  # addresses of storages are compared while all are alive
        for i, (fake, _) in enumerate(inputs):
            place = call.storages.index(call.values[i].storage)
            self._storages[fake.untyped_storage()._cdata] = place
        self._fresh: list[int] = []
        self._first_fresh = len(call.storages)

    def template(self, added: list[Node], result: Any) -> Template:
        returned = self._returned_numbers(result, set(added))
        nodes = self._nodes_of(needed_numbers(added, returned.values()))
        items = [node.args for node in added if node.target is _getitem]
        if len(set(items)) != len(items):
            raise UnsafeError(f"{self._target}: the trace takes one item twice")
        self._returned = returned
        read = self._result(result)
        for node in added:
            node.meta = {}  # a template keeps nodes, and no tensors
        calls = tuple(self._recorder.tracer.torch_fn_counts.items())
        fresh = tuple(self._fresh)
        return Template(nodes, self._numbers, fresh, read, calls, self._is_symbolic)

    def _nodes_of(self, entries: list[Entry]) -> tuple[TemplateNode, ...]:
        nodes: list[TemplateNode] = []
        for entry in entries:
            if entry.is_needed:
                made = self._needed(entry.node)
                if made.read is not None and made.read >= 0:
                    kept = ("stack_trace", "nn_module_stack")
                    items = {
                        key: self._item(key, item, None)
                        for key, item in entry.node.meta.items()
                        if key in kept
                    }
                    parts = parts_of(made.number, items, self._numbers, len(nodes))
                    nodes += parts
                    made = made._replace(parts=len(parts))
            else:
                made = self._node(entry.node)
            self._numbers[entry.node] = len(nodes)
            nodes.append(made)
        return tuple(nodes)

    def _returned_numbers(self, result: Any, added: set[Node]) -> dict[int, Node]:
        """Return id of a number that the call returns -> the node that computed it in the call."""
        found = {}
        for number in compat.pytree.tree_leaves(result):
            if type(number) in sizes.KINDS and sizes.expression_of(number, self._env) is not None:
                node = sizes.node_of_number(number, self._recorder.tracer)
                if node in self._given_numbers or (node in added and sizes.computes(node.target)):
                    found[id(number)] = node
        return found

    def _needed(self, node: Node) -> TemplateNode:
        """Describe a node that reads a number which the call is given, by itself or as a size."""
        self._is_symbolic = True
        given = self._given_numbers.get(node)
        uses = () if given is None else (given,)
        expression = self._expression(node.meta["val"])
        read = next((self._numbers[n] for n in node.all_input_nodes if n in self._numbers), None)
        return TemplateNode(None, node, uses, "number", False, (), None, expression, True, read)

    def _expression(self, number: Any) -> Any:
        expression = sizes.expression_of(number, self._env)
        if expression is None:
            raise self._refuse("the trace makes a number without a value")
        return expression

    def _refuse(self, why: str) -> UnsafeError:
        return UnsafeError(f"{self._target}: {why}")

    def _node(self, node: Node) -> TemplateNode:
        target = node.target
        if node.op != "call_function":
            raise self._refuse(f"the trace adds a {node.op}")
        if isinstance(target, compat.OpOverload):
            if target._schema.is_mutable or target in compat.GUARDED_CONVERSIONS:
                raise self._refuse(f"the trace calls {target}")
        elif target is not _getitem and not sizes.computes(target):
            raise self._refuse(f"the trace calls {target}")
        uses = []
        for used in node.all_input_nodes:
            if used not in self._numbers:
                raise self._refuse("the trace uses a value from elsewhere")
            uses.append(self._numbers[used])
        _check_constants(self._target, (node.args, node.kwargs))
        value = self._value(node.meta.get("val"))
        meta = tuple([self._item(key, item, value) for key, item in node.meta.items()])
        candidate = self._recorder.candidate(node.name)
        stays = compat.stays(node)
        number = value.expression if type(value) is NumberSpec else None
        return TemplateNode(target, node, tuple(uses), candidate, stays, meta, value, number)

    def _item(self, key: str, item: Any, value: Any) -> tuple[str, str, Any]:
        """Tell how a node got an item of its meta."""
        if key == "val":
            return key, kinds.VALUE, None
        if key == "tensor_meta" and type(value) is TensorSpec:
            return key, kinds.LITERAL, without_numbers(item, value.facts)
        if key == "seq_nr":
            return key, kinds.SEQUENCE, item
        if key == "from_node":
            return key, kinds.SOURCE, None
        if key == "stack_trace" and item is _STACK:
            return key, kinds.STACK, None
        if key in self._meta and (item is self._meta[key] or item == self._meta[key]):
            return key, kinds.COPIED, None
        if key == "original_aten":
            is_size = item is None and type(value) is NumberSpec
            if not isinstance(item, compat.OpOverload) and not is_size:
                raise self._refuse("the trace calls an operator of higher order")
            return key, kinds.LITERAL, item
        if key == "is_functional_regenerated" and item is True:
            return key, kinds.LITERAL, item
        if key == "nn_module_stack" and not item:
            return key, kinds.COPIED_LITERAL, item
        if key == "torch_fn":
            return key, kinds.COUNTED, self._counted(item)
        raise self._refuse(f"the trace makes {key!r}")

    def _counted(self, item: Any) -> tuple[Any, int]:
        """Return the function that a node's `torch_fn` names, and the number of its call."""
        name, _, count = item[0].rpartition("_")
        found = [
            function
            for function, calls in self._recorder.tracer.torch_fn_counts.items()
            if isinstance(function, compat.OpOverload)
            and function.__name__ == name
            and item[1] == f"{type(function).__name__}.{name}"
            and int(count) <= calls
        ]
        if len(found) != 1:
            raise self._refuse("the trace does not tell which function it called")
        return found[0], int(count)

    def _value(self, value: Any) -> Any:
        """Describe the value of a node."""
        if isinstance(value, torch.Tensor):
            if type(value) is not compat.FakeTensor or value.fake_mode is not self._recorder.mode:
                raise self._refuse("the trace makes a tensor of another class")
            if value.requires_grad or isinstance(value, torch.nn.Parameter):
                raise self._refuse("the trace makes a tensor that requires gradients")
            if value.constant is not None or value.real_tensor is not None:
                raise self._refuse("the trace makes a constant")
            facts = facts_of(value, self._env)
            self._is_symbolic |= facts.is_symbolic
            storage = self._storage(value)
            own = storage - self._first_fresh
            is_whole = own >= 0 and _is_whole(facts, value.element_size(), self._fresh[own])
            return TensorSpec(facts, storage, is_whole)
        if type(value) in (list, tuple):
            return type(value)([self._value(item) for item in value])
        if value is None or type(value) in (int, float, bool):
            return value
        if type(value) in sizes.KINDS:
            self._is_symbolic = True
            return NumberSpec(self._expression(value), sizes.KINDS[type(value)])
        raise self._refuse(f"the trace makes a {type(value).__name__}")

    def _storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        place = self._storages.get(storage._cdata)
        if place is None:
            place = self._storages[storage._cdata] = self._first_fresh + len(self._fresh)
            self._fresh.append(size_of(storage.nbytes(), self._env))
            self._kept.append(storage)
        return place

    def _result(self, result: Any) -> Any:
        """Describe what the call returned."""
        if isinstance(result, torch.Tensor):
            return self._output(result)
        if type(result) in (list, tuple):
            return type(result)([self._result(item) for item in result])
        if result is None or type(result) in (int, float, bool, str, torch.dtype, torch.device):
            return result
        if type(result) in sizes.KINDS:
            self._is_symbolic = True
            node = self._returned.get(id(result))
            place = None if node is None else self._given_numbers.get(node, self._numbers.get(node))
            return NumberOutput(self._expression(result), sizes.KINDS[type(result)], place)
        raise self._refuse(f"the call returns a {type(result).__name__}")

    def _output(self, result: torch.Tensor) -> Any:
        for value, outer in self._given.items():
            if outer is result:
                return Output(
                    self._numbers_of(value), value.facts, self._storage(compat.inner(outer))
                )
        if type(result) is not compat.FunctionalTensor:
            raise self._refuse(f"the call returns a {type(result).__name__}")
        if compat.was_written(result):  # views of it, later on, would be made once more
            raise self._refuse("the call returns what it wrote to")
        inner = compat.inner(result)
        node, constant = compat.node_of(inner, self._recorder.tracer)
        if node not in self._numbers or constant is not None:
            raise self._refuse("the call returns a constant")
        if type(inner) is not compat.FakeTensor or inner.constant is not None:
            raise self._refuse("the call returns a constant")
        facts: Facts = facts_of(inner, self._env, result.requires_grad)
        return Output(self._numbers[node], facts, self._storage(inner))

    def _numbers_of(self, value: Value) -> int:
        inner = compat.inner(self._given[value])
        node, _ = compat.node_of(inner, self._recorder.tracer)
        return self._numbers[node]


_getitem = operator.getitem
_CONSTANTS = (int, float, complex, bool, str, type(None), torch.dtype, torch.device, torch.layout)


def _check_constants(target: Any, argument: Any) -> None:
    """Raise UnsafeError if an argument of a node has a constant that is no plain data."""
    if isinstance(argument, (list, tuple)):
        for item in argument:
            _check_constants(target, item)
    elif isinstance(argument, dict):
        for item in argument.values():
            _check_constants(target, item)
    elif isinstance(argument, slice):
        _check_constants(target, (argument.start, argument.stop, argument.step))
    elif not isinstance(argument, (Node, torch.memory_format, *_CONSTANTS)):
        raise UnsafeError(f"{target}: the trace has an argument of type {type(argument).__name__}")


def _begins_its_storage(value: Any) -> bool:
    """Return whether the tensors of a node's value begin where their storages do."""
    if type(value) is TensorSpec:
        return bool(value.facts.offset == 0)
    return not isinstance(value, (list, tuple)) or all(map(_begins_its_storage, value))


def _is_whole(facts: Facts, itemsize: int, nbytes: Any) -> bool:
    """Return whether `torch.empty_strided` would give a tensor such a storage."""
    last = sum((n - 1) * stride for n, stride in zip(facts.shape, facts.strides, strict=True))
    items = 0 if 0 in facts.shape else last + 1
    return bool(facts.offset == 0 and items * itemsize == nbytes)

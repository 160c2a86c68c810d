"""Trace a call by torch on metadata, and record what it did."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fxpress._decompose import template as kinds
from fxpress._decompose.keys import Call, mapped
from fxpress._decompose.template import Output, Template, TemplateNode, TensorSpec
from fxpress._decompose.values import Facts, UnsafeError, Value, facts_of
from fxpress._torch import decompose as compat


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

    def run(self, inputs: list[Any], graph: Any) -> tuple[Any, dict[Value, Any]]:
        """Run the call; return its result, and the tensors that it was given by their values.

        Args:
            inputs: fake tensors, by number.
            graph: an object whose identity stands for that of the graph of the call.

        Raises:
            UnsafeError: the call raised an exception, or changed an input.
        """
        wrapped: dict[Value, Any] = {}

        def tensor(value: Value) -> Any:
            if value not in wrapped:
                wrapped[value] = _wrapped(inputs[self.call.number_of(value)], value)
            return wrapped[value]

        given = [mapped(a, self.environment, tensor) for a in self.args]
        named = {k: mapped(a, self.environment, tensor) for k, a in self.kwargs.items()}
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
    """

    def __init__(self, tracer: Any, functional_mode: Any, fakes: compat.Fakes) -> None:
        self._tracer = tracer
        self._functional_mode = functional_mode
        self._fakes = fakes
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
        # torch runs a program once before it traces it. That fills the fake mode's cache, and a
        # tensor from the cache may lie elsewhere in its storage than one that was computed. So a
        # call is run before it is traced, too, unless all tensors begin where their storages do.
        if not any(value.facts.offset for value in call.values):
            cached = compat.cached_results()
            template = self._trace(traced)
            if all(_begins_its_storage(node.value) for node in template.nodes):
                return template
            compat.restore_cached_results(cached)
        with compat.without_tracing():
            traced.run(self._make_inputs(call), self._tracer.graph)
        return self._trace(traced)

    def _trace(self, traced: _Traced) -> Template:
        """Trace a call, and return what that did."""
        tracer, call = self._tracer, traced.call
        inputs = self._make_inputs(call)
        self._inputs += 1
        known = [(t, compat.track(t, tracer, f"input{self._inputs}")) for t in inputs]
        last = next(iter(reversed(tracer.graph.nodes)), None)
        tokens = len(self._functional_mode._tokens)
        tracer.torch_fn_counts = {}
        tracer.torch_fn_metadata = None
        result, wrapped = traced.run(inputs, tracer.graph)
        if len(self._functional_mode._tokens) != tokens:
            raise UnsafeError(f"{traced.target}: the trace has effects")
        added = []
        node = next(iter(tracer.graph.nodes), None) if last is None else last.next
        while node is not None and node is not tracer.graph._root:
            added.append(node)
            node = node.next
        reading = _Reading(self, traced.target, known, wrapped, traced.meta, call)
        return reading.template(added, result)

    def _make_inputs(self, call: Call) -> list[Any]:
        """Make a fake tensor for each value of a call; they share storages as the values do."""
        made = []
        with compat.outside_of_modes():
            storages = {s: self._fakes.storage(s.nbytes, None) for s in call.storages}
            for value in call.values:
                f = value.facts
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
        wrapped: dict[Value, Any],
        meta: dict[str, Any],
        call: Call,
    ) -> None:
        self._recorder = recorder
        self._target = target
        self._given = wrapped
        self._meta = meta
        self._numbers: dict[Any, int] = {node: -1 - i for i, (_, node) in enumerate(inputs)}
        self._storages: dict[int, int] = {}
        self._kept: list[Any] = []  # addresses of storages are compared while all are alive
        for i, (fake, _) in enumerate(inputs):
            place = call.storages.index(call.values[i].storage)
            self._storages[fake.untyped_storage()._cdata] = place
        self._fresh: list[int] = []
        self._first_fresh = len(call.storages)

    def template(self, added: list[Node], result: Any) -> Template:
        for number, node in enumerate(added):
            self._numbers[node] = number
        nodes = tuple([self._node(node) for node in added])
        items = [node.args for node in added if node.target is _getitem]
        if len(set(items)) != len(items):
            raise UnsafeError(f"{self._target}: the trace takes one item twice")
        read = self._result(result)
        for node in added:
            node.meta = {}  # a template keeps nodes, and no tensors
        calls = tuple(self._recorder.tracer.torch_fn_counts.items())
        return Template(nodes, self._numbers, tuple(self._fresh), read, calls)

    def _refuse(self, why: str) -> UnsafeError:
        return UnsafeError(f"{self._target}: {why}")

    def _node(self, node: Node) -> TemplateNode:
        target = node.target
        if node.op != "call_function":
            raise self._refuse(f"the trace adds a {node.op}")
        if isinstance(target, compat.OpOverload):
            if target._schema.is_mutable or target in compat.GUARDED_CONVERSIONS:
                raise self._refuse(f"the trace calls {target}")
        elif target is not _getitem:
            raise self._refuse(f"the trace calls {target}")
        uses = []
        for used in node.all_input_nodes:
            if used not in self._numbers:
                raise self._refuse("the trace uses a value from elsewhere")
            uses.append(self._numbers[used])
        _check_constants(self._target, (node.args, node.kwargs))
        meta = tuple([self._item(key, item) for key, item in node.meta.items()])
        value = self._value(node.meta.get("val"))
        candidate = self._recorder.candidate(node.name)
        stays = compat.stays(node)
        return TemplateNode(target, node, tuple(uses), candidate, stays, meta, value)

    def _item(self, key: str, item: Any) -> tuple[str, str, Any]:
        """Tell how a node got an item of its meta."""
        if key == "val":
            return key, kinds.VALUE, None
        if key == "tensor_meta":
            return key, kinds.LITERAL, item
        if key == "seq_nr":
            return key, kinds.SEQUENCE, item
        if key == "from_node":
            return key, kinds.SOURCE, None
        if key == "stack_trace" and item is _STACK:
            return key, kinds.STACK, None
        if key in self._meta and (item is self._meta[key] or item == self._meta[key]):
            return key, kinds.COPIED, None
        if key == "original_aten":
            if not isinstance(item, compat.OpOverload):
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
            facts = facts_of(value)
            storage = self._storage(value)
            is_own = storage >= self._first_fresh
            return TensorSpec(facts, storage, is_own and _is_whole(facts, value))
        if type(value) in (list, tuple):
            return type(value)([self._value(item) for item in value])
        if value is None or type(value) in (int, float, bool):
            return value
        raise self._refuse(f"the trace makes a {type(value).__name__}")

    def _storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        place = self._storages.get(storage._cdata)
        if place is None:
            if type(storage.nbytes()) is not int:
                raise self._refuse("the trace makes symbolic sizes")
            place = self._storages[storage._cdata] = self._first_fresh + len(self._fresh)
            self._fresh.append(storage.nbytes())
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
        facts: Facts = facts_of(inner, result.requires_grad)
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
        return value.facts.offset == 0
    return not isinstance(value, (list, tuple)) or all(map(_begins_its_storage, value))


def _is_whole(facts: Facts, tensor: torch.Tensor) -> bool:
    """Return whether `torch.empty_strided` would give a tensor such a storage."""
    last = sum((n - 1) * stride for n, stride in zip(facts.shape, facts.strides, strict=True))
    items = 0 if 0 in facts.shape else last + 1
    return facts.offset == 0 and items * tensor.element_size() == tensor.untyped_storage().nbytes()

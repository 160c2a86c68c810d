"""Build a template from the nodes that the trace of a call added."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from fxpress._graphs.decompose import template as kinds
from fxpress._graphs.decompose.keys import Call
from fxpress._graphs.decompose.symbols import without_numbers
from fxpress._graphs.decompose.template import (
    NumberOutput,
    NumberSpec,
    Output,
    Template,
    TemplateNode,
    TensorSpec,
)
from fxpress._graphs.decompose.values import (
    Facts,
    UnsafeError,
    Value,
    bytes_of,
    facts_of,
    size_of,
)
from fxpress._graphs.trace.proxy_calls import node_of_number
from fxpress._graphs.trace.results import Number
from fxpress._torch import decompose as compat
from fxpress._torch import symbols as sizes


def nodes_after(last: Node, graph: Graph) -> list[Node]:
    """Return the nodes after `last` in a graph; `last` is one of its nodes, or its root node."""
    nodes = []
    node = last.next
    while node is not graph._root:
        nodes.append(node)
        node = node.next
    return nodes


def _computation_of(
    expression: Any, items: dict[str, tuple[str, str, Any]], numbers: dict[Any, int], first: int
) -> list[TemplateNode]:
    """Return the nodes that torch adds to compute the expression of a size.

    `items` has the `stack_trace` and `nn_module_stack` of these nodes. `numbers` gets an entry for
    each node: `first`, `first` + 1, ...
    """
    graph = Graph()
    if "nn_module_stack" not in items:
        return []
    made: list[TemplateNode] = []
    for number, part, node in sizes.computed(expression, graph) or ():
        is_symbol = node.op == "placeholder"
        uses = tuple([numbers[used] for used in node.all_input_nodes])
        meta = () if is_symbol else _size_meta(node, items)
        value = None if is_symbol else NumberSpec(part, int)
        target = None if is_symbol else node.target
        name = "number" if is_symbol else str(graph._target_to_str(node.target))
        numbers[node] = first + len(made)
        made.append(TemplateNode(target, node, uses, name, False, meta, value, number, is_symbol))
    return made


def _size_meta(
    node: Node, items: dict[str, tuple[str, str, Any]]
) -> tuple[tuple[str, str, Any], ...]:
    """Return the meta of a node that computes a size, as in `TemplateNode.meta`."""
    target: Any = node.target
    return (
        ("val", kinds.VALUE, None),
        items.get("stack_trace", ("stack_trace", kinds.LITERAL, sizes.TRACE)),
        items["nn_module_stack"],
        ("torch_fn", kinds.LITERAL, sizes.function_of(target)),
        ("custom", kinds.COPIED_LITERAL, {}),
    )


class Entry(NamedTuple):
    """A node of a trace that a template keeps."""

    node: Node
    is_reference: bool  # whether it stands for a number that a node of another call may compute


def _is_number(node: Node) -> bool:
    return type(node.meta.get("val")) in sizes.KINDS


def _nodes_to_keep(added: list[Node], returned: Iterable[Node]) -> list[Entry]:
    """Return the nodes that a template keeps, in order; `added` are all nodes that torch added.

    torch also adds nodes for symbolic numbers that it only compares. The template keeps the node of
    a number only if the node of a tensor needs the number, or if the call returns the number.
    """
    used: dict[Node, None] = {}
    own = set(added)
    waiting = [node for node in returned if node in own]
    for node in added:
        if not _is_number(node):
            waiting += [each for each in node.all_input_nodes if _is_number(each)]
    while waiting:
        node = waiting.pop()
        if node not in used:
            used[node] = None
            if node in own and sizes.computes(node.target):
                waiting += node.all_input_nodes
    from_elsewhere = [Entry(node, True) for node in used if node not in own]
    kept = [
        Entry(node, _is_number(node) and not sizes.computes(node.target))
        for node in added
        if node in used or not _is_number(node)
    ]
    return from_elsewhere + kept


class MetaItems(NamedTuple):
    """Describes the meta of nodes that a call adds.

    Attributes:
        target: the operator of the call.
        meta: the items of meta that torch copies from the call to the new nodes.
        tracer: the tracer of the trace.
    """

    target: Any
    meta: dict[str, Any]
    tracer: Any

    def item(self, key: str, item: Any, value: Any) -> tuple[str, str, Any]:
        """Return (key, how an instance's node gets the item, recorded value) for a meta item."""
        if key == "val":
            return key, kinds.VALUE, None
        if key == "tensor_meta" and type(value) is TensorSpec:
            return key, kinds.LITERAL, without_numbers(item, value.facts)
        if key == compat.EAGER_INPUTS:  # computed for each node by `compat.set_eager_inputs`
            return key, kinds.LITERAL, None
        if key == "seq_nr":
            return key, kinds.SEQUENCE, item
        if key == "from_node":
            return key, kinds.SOURCE, None
        if key == "stack_trace" and item is self.meta.get(key):
            return key, kinds.STACK, None
        if key in self.meta and (item is self.meta[key] or item == self.meta[key]):
            return key, kinds.COPIED, None
        if key == "original_aten":
            is_size = item is None and type(value) in (NumberSpec, Number)
            if not isinstance(item, compat.OpOverload) and not is_size:
                raise self.refuse("the trace calls a higher-order operator")
            return key, kinds.LITERAL, item
        if key == "is_functional_regenerated" and item is True:
            return key, kinds.LITERAL, item
        if key == "nn_module_stack" and not item:
            return key, kinds.COPIED_LITERAL, item
        if key == "torch_fn":
            return key, kinds.COUNTED, self._counted(item)
        if key == "custom" and key not in self.meta and _is_plain(item):
            return key, kinds.COPIED_LITERAL, item  # set by a decomposition of torch
        raise self.refuse(f"the trace adds {key!r} to meta")

    def _counted(self, item: Any) -> tuple[Any, int]:
        """Return (the function in a node's `torch_fn`, the number of the function's call)."""
        name, _, count = item[0].rpartition("_")
        found = [
            function
            for function, calls in self.tracer.torch_fn_counts.items()
            if isinstance(function, compat.OpOverload)
            and function.__name__ == name
            and item[1] == f"{type(function).__name__}.{name}"
            and int(count) <= calls
        ]
        if len(found) != 1:
            raise self.refuse("the function that the trace called is unknown")
        return found[0], int(count)

    def refuse(self, why: str) -> UnsafeError:
        """Return the error for a call whose trace cannot become a template."""
        return UnsafeError(f"{self.target}: {why}")


class TemplateBuilder:
    """Builds the template of one call.

    Args:
        tracer: the tracer of the trace.
        mode: the program's fake mode.
        candidate: name of a node -> the name that torch proposed for the node.
        target: the operator.
        inputs: (fake tensor, node) of each tensor argument.
        numbers: the nodes of the symbolic numbers among the arguments.
        wrapped: Value among the arguments -> the Value's functional tensor.
        meta: the items of meta that torch copies from the call to the new nodes.
        call: the arguments, as a Call.
        written: the argument that the call writes to and returns.
    """

    def __init__(
        self,
        tracer: Any,
        mode: Any,
        candidate: Callable[[str], str],
        target: Any,
        inputs: Sequence[tuple[Any, Node]],
        numbers: list[Node],
        wrapped: dict[Value, Any],
        meta: dict[str, Any],
        call: Call,
        written: Value | None = None,
    ) -> None:
        self._mode, self._candidate = mode, candidate
        self._wrapped = wrapped
        self._call = call
        self._written = written
        self._meta = MetaItems(target, meta, tracer)
        self._env = mode.shape_env
        self._is_symbolic = bool(numbers)
        self._input_numbers = {node: -1 - len(inputs) - i for i, node in enumerate(numbers)}
        self._numbers: dict[Any, int] = {node: -1 - i for i, (_, node) in enumerate(inputs)}
        self._storages: dict[int, int] = {}  # address of a storage -> its number in the template
        self._kept: list[Any] = []  # keeps storages alive, so that addresses are not reused
        for i, (fake, _) in enumerate(inputs):
            number = call.storages.index(call.values[i].storage)
            self._storages[fake.untyped_storage()._cdata] = number
        self._fresh: list[int] = []  # size in bytes of each storage that the call creates
        self._first_fresh = len(call.storages)

    def build(self, added: list[Node], result: Any) -> Template:
        """Return the template for the nodes that the trace added and the call's result."""
        returned = self._returned_numbers(result, set(added))
        nodes = self._nodes_of(_nodes_to_keep(added, returned.values()))
        items = [node.args for node in added if node.target is _getitem]
        if len(set(items)) != len(items):
            raise self._meta.refuse("the trace reads an item of a result twice")
        self._returned = returned
        described = self._result(result)
        calls = tuple(self._meta.tracer.torch_fn_counts.items())
        fresh = tuple(self._fresh)
        written = self._written
        writes = None if written is None else self._call.number_of(written)
        parts = (nodes, self._numbers, fresh, described, calls, self._is_symbolic)
        return Template(*parts, writes=writes)

    def _nodes_of(self, entries: list[Entry]) -> tuple[TemplateNode, ...]:
        nodes: list[TemplateNode] = []
        for entry in entries:
            if entry.is_reference:
                made = self._reference(entry.node)
                if made.read is not None:
                    kept = ("stack_trace", "nn_module_stack")
                    items = {
                        key: self._meta.item(key, item, None)
                        for key, item in entry.node.meta.items()
                        if key in kept
                    }
                    parts = _computation_of(made.number, items, self._numbers, len(nodes))
                    nodes += parts
                    made = made._replace(parts=len(parts))
            else:
                made = self._node(entry.node)
            self._numbers[entry.node] = len(nodes)
            nodes.append(made)
        return tuple(nodes)

    def _returned_numbers(self, result: Any, added: set[Node]) -> dict[int, Node]:
        """Return {id of a symbolic number in the result: the node that computes the number}."""
        found = {}
        for number in compat.pytree.tree_leaves(result):
            if type(number) in sizes.KINDS and sizes.expression_of(number, self._env) is not None:
                node = node_of_number(number, self._meta.tracer)
                if node in self._input_numbers or (node in added and sizes.computes(node.target)):
                    found[id(number)] = node
        return found

    def _reference(self, node: Node) -> TemplateNode:
        """Describe a node whose number the call reads: an argument, or the size of an argument."""
        self._is_symbolic = True
        argument = self._input_numbers.get(node)
        uses = () if argument is None else (argument,)
        expression = self._expression(node.meta["val"])
        read = next((self._numbers[n] for n in node.all_input_nodes if n in self._numbers), None)
        return TemplateNode(None, node, uses, "number", False, (), None, expression, True, read)

    def _expression(self, number: Any) -> Any:
        expression = sizes.expression_of(number, self._env)
        if expression is None:
            raise self._meta.refuse("the trace creates a number without an expression")
        return expression

    def _node(self, node: Node) -> TemplateNode:
        target = node.target
        if node.op != "call_function":
            raise self._meta.refuse(f"the trace adds a {node.op}")
        if isinstance(target, compat.OpOverload):
            if target._schema.is_mutable or target in compat.GUARDED_CONVERSIONS:
                raise self._meta.refuse(f"the trace calls {target}")
        elif target is not _getitem and not sizes.computes(target):
            raise self._meta.refuse(f"the trace calls {target}")
        uses = []
        for used in node.all_input_nodes:
            if used not in self._numbers:
                raise self._meta.refuse("the trace uses a value of another call")
            uses.append(self._numbers[used])
        _check_constants(self._meta.target, (node.args, node.kwargs))
        value = self._value(node.meta.get("val"))
        meta = tuple([self._meta.item(key, item, value) for key, item in node.meta.items()])
        candidate = self._candidate(node.name)
        stays = compat.stays(node)
        number = value.expression if type(value) is NumberSpec else None
        return TemplateNode(target, node, tuple(uses), candidate, stays, meta, value, number)

    def _value(self, value: Any) -> Any:
        """Return the description of a node's value, as in `TemplateNode.value`."""
        if isinstance(value, torch.Tensor):
            if type(value) is not compat.FakeTensor or value.fake_mode is not self._mode:
                raise self._meta.refuse("the trace creates a tensor of another class or fake mode")
            if value.requires_grad or isinstance(value, torch.nn.Parameter):
                raise self._meta.refuse("the trace creates a tensor that requires gradients")
            if value.constant is not None or value.real_tensor is not None:
                raise self._meta.refuse("the trace creates a constant")
            facts = facts_of(value, self._env)
            self._is_symbolic |= facts.is_symbolic
            storage = self._storage(value)
            own = storage - self._first_fresh
            is_whole = own >= 0 and facts.offset == 0 and bytes_of(facts) == self._fresh[own]
            return TensorSpec(facts, storage, bool(is_whole))
        if type(value) in (list, tuple):
            return type(value)([self._value(item) for item in value])
        if value is None or type(value) in (int, float, bool):
            return value
        if type(value) in sizes.KINDS:
            self._is_symbolic = True
            return NumberSpec(self._expression(value), sizes.KINDS[type(value)])
        raise self._meta.refuse(f"the trace creates a {type(value).__name__}")

    def _storage(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        number = self._storages.get(storage._cdata)
        if number is None:
            number = self._storages[storage._cdata] = self._first_fresh + len(self._fresh)
            self._fresh.append(size_of(storage.nbytes(), self._env))
            self._kept.append(storage)
        return number

    def _result(self, result: Any) -> Any:
        """Return the description of the call's result, as in `Template.result`."""
        if isinstance(result, torch.Tensor):
            return self._output(result)
        if type(result) in (list, tuple):
            return type(result)([self._result(item) for item in result])
        if result is None or type(result) in (int, float, bool, str, torch.dtype, torch.device):
            return result
        if type(result) in sizes.KINDS:
            self._is_symbolic = True
            node = self._returned.get(id(result))
            number = None
            if node is not None:
                number = self._input_numbers.get(node, self._numbers.get(node))
            return NumberOutput(self._expression(result), sizes.KINDS[type(result)], number)
        raise self._meta.refuse(f"the call returns a {type(result).__name__}")

    def _output(self, result: torch.Tensor) -> Any:
        for value, outer in self._wrapped.items():
            if outer is result:
                inner = compat.inner(outer)
                is_written = value is self._written
                if is_written and facts_of(inner, self._env, outer.requires_grad) != value.facts:
                    raise self._meta.refuse(
                        "the call changes the metadata of the tensor it writes to"
                    )
                argument = None if is_written else self._call.number_of(value)
                place = (self._number_of(inner), value.facts, self._storage(inner))
                return Output(*place, is_base=is_written, argument=argument)
        if type(result) is not compat.FunctionalTensor:
            raise self._meta.refuse(f"the call returns a {type(result).__name__}")
        if compat.was_written(result):  # functionalization would compute its views again
            raise self._meta.refuse("the call returns a tensor that it wrote to")
        inner = compat.inner(result)
        number = self._number_of(inner)
        if type(inner) is not compat.FakeTensor or inner.constant is not None:
            raise self._meta.refuse("the call returns a constant, or not a FakeTensor")
        facts: Facts = facts_of(inner, self._env, result.requires_grad)
        return Output(number, facts, self._storage(inner), compat.is_base(result))

    def _number_of(self, inner: torch.Tensor) -> int:
        node, constant = compat.node_of(inner, self._meta.tracer)
        if node not in self._numbers or constant is not None:
            raise self._meta.refuse(
                "the call returns a constant or a tensor without a recorded node"
            )
        return self._numbers[node]


_getitem = operator.getitem
_CONSTANTS = (int, float, complex, bool, str, type(None), torch.dtype, torch.device, torch.layout)


def _is_plain(annotations: Any) -> bool:
    """Return whether annotations are a dict of constants, so that a shallow copy is enough."""
    return type(annotations) is dict and all(
        type(key) is str and isinstance(value, _CONSTANTS) for key, value in annotations.items()
    )


def _check_constants(target: Any, argument: Any) -> None:
    """Raise UnsafeError if `argument` contains an object other than nodes and plain constants."""
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

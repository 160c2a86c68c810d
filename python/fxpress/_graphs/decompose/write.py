"""Write the graph of the decomposed program from its plan."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.export.graph_signature import InputKind
from torch.fx import Graph, Node

from fxpress import _native
from fxpress._graphs.decompose.inputs import Input, SizeNodes
from fxpress._graphs.decompose.plan import Instance, Plan
from fxpress._graphs.decompose.symbols import Symbols
from fxpress._graphs.decompose.template import Template, TemplateNode
from fxpress._graphs.decompose.values import Facts, Number, Storage, UnsafeError, Value
from fxpress._torch import decompose as compat
from fxpress._torch.fakes import without_data
from fxpress._torch.unlift import CREATED, REPLACED
from fxpress._torch.versions import features


class Sources:
    """Creates torch's `from_node` records, but with another id for the graph of `ep.module()`.

    fxpress does not create this graph, and records the id of the object `between` instead.
    """

    def __init__(self, old: Graph, between: Any) -> None:
        self._old_id = id(old)
        self._between_id = id(between)
        self._in_module = _native.Provenance(CREATED)
        self._in_trace = _native.Provenance(compat.TRACED)
        self._unlifted = _native.Provenance(REPLACED)
        namespace = compat.Namespace()
        nodes = _native.list_nodes(old)
        by_name = {node.name: node for node in nodes if node.op != "placeholder"}
        by_target = {node.target: node for node in nodes if node.op == "placeholder"}
        self._names: dict[Node, str] = {}
        self._known: dict[Node, Node | None] = {}
        for node in nodes:
            name = self._names[node] = namespace.create_name(node.name, None)
            found = by_target.get(node.target) if node.op == "placeholder" else by_name.get(name)
            self._known[node] = found
        self._lists: dict[Node, list[Any]] = {}

    def of_module(self, node: Node) -> list[Any]:
        """Return the records of the node in `ep.module()` that corresponds to an old `node`."""
        found = self._lists.get(node)
        if found is None:
            found = self._lists[node] = self._of_old(self._known[node])
        return found

    def of_trace(self, node: Node) -> Any:
        """Return the `from_node` record of the nodes that a trace creates for a call."""
        return self._of_between(self._in_trace, node)[0]

    def of_unlifted(self, node: Node) -> list[Any]:
        """Return the records of a new node for the output, or for a state tensor of the program."""
        return self._of_between(self._unlifted, node)

    def _of_old(self, node: Node | None) -> list[Any]:
        if node is None:
            return self._in_module.note_of_none()
        earlier = node.meta.get("from_node")
        return self._in_module.note(node.name, node.target, self._old_id, earlier)

    def _of_between(self, pass_of_torch: _native.Provenance, node: Node) -> list[Any]:
        name = self._names[node]
        return pass_of_torch.note(name, node.target, self._between_id, self.of_module(node))


try:
    from fxpress._torch.aten import like_pattern
except ImportError:  # fxpress has no `_aten` extension for this torch

    def like_pattern(pattern: torch.Tensor, storage: torch.UntypedStorage | None) -> torch.Tensor:
        geometry = (pattern.shape, pattern.stride(), pattern.storage_offset(), pattern.dtype)
        return without_data(*geometry, storage)


_GATHERED = tuple(f for f in compat.COPIED_META if f not in ("custom", "from_node"))


def _is_symbol(value: object) -> bool:
    """Return whether torch creates a symbol for the constant input `value`, and compares both."""
    return type(value) is int and value not in (0, 1)


def _sets_value(value: object) -> bool:
    """Return whether torch's trace sets the `val` of the placeholder of a plain input."""
    return _is_symbol(value) or (
        type(value) in (int, bool, float) and features.traced_numbers_have_values
    )


class Writer:
    """Writes the graph of a plan.

    Attributes:
        tools: role -> an object of torch that native code uses.
    """

    def __init__(
        self,
        plan: Plan,
        inputs: list[Input],
        size_nodes: SizeNodes,
        sources: Sources,
        symbols: Symbols,
        fakes: compat.Fakes,
        graph: Graph,
    ) -> None:
        self._plan = plan
        self._inputs = inputs
        self._size_nodes = size_nodes
        self._sources = sources
        self._symbols = symbols
        self._fakes = fakes
        self._graph = graph
        self._nodes: list[Any] = []
        self.tools = {**compat.TOOLS, "like_pattern": like_pattern}
        self._order = {node: position for position, node in enumerate(plan.nodes)}
        self._calls: dict[Any, int] = {}
        is_state = [entry.spec.kind is not InputKind.USER_INPUT for entry in inputs]
        self._first_user_input = sum(is_state)  # user inputs come after all state

    def write(self, names: list[str]) -> Node:
        """Write all nodes, and return the output."""
        plan = self._plan
        metas = [self._input_meta(number, entry) for number, entry in enumerate(self._inputs)]
        first = self._size_nodes.instance
        instances = [*plan.instances] if first is None else [first, *plan.instances]
        size = plan.size
        returned = compat.pytree.tree_leaves(plan.output)
        numbers = [value for value in returned if type(value) is Number]
        self._returned = {id(number): size + i for i, number in enumerate(numbers)}
        if numbers:
            instances.append(self._instance_of_returned(numbers, size))
            size += len(numbers)
        self._nodes, name = _native.write_instances(
            graph=self._graph,
            names=names,
            metas=metas,
            taken=["eq" for entry in self._inputs if _is_symbol(entry.old.meta["val"])],
            instances=[s._replace(template=self._symbols.bound(s.template)) for s in instances],
            sizes=self._size_nodes.of_inputs,
            readers=self._size_nodes.count,
            roots=[self._number_of(v) for v in returned if type(v) in (Value, Number)],
            size=size,
            sequence=compat.next_sequence_number(),
            helper=self,
        )
        for node in self._nodes:
            if node is not None and compat.EAGER_INPUTS in node.meta:
                compat.set_eager_inputs(node)
        argument = self._argument(plan.output)
        return compat.append(self._graph, name, "output", "output", (argument,), {})

    def _instance_of_returned(self, numbers: list[Number], first: int) -> Instance:
        """Return an instance whose nodes represent the numbers that the program returns."""
        empty = TemplateNode(None, None, (), "number", False, (), None)._replace(is_needed=True)
        nodes = tuple(
            [empty._replace(uses=(-1 - i,), number=n.expression) for i, n in enumerate(numbers)]
        )
        template = Template(nodes, {}, (), None, (), True)
        computed = [-1 if number.node is None else number.node for number in numbers]
        return Instance(self._inputs[0].old, template, computed, [], first)

    def _number_of(self, value: Any) -> int:
        """Return the number of the node for a returned Value or Number."""
        return value.node if type(value) is Value else self._returned[id(value)]

    def _argument(self, value: Any) -> Any:
        if type(value) in (Value, Number):
            return self._nodes[self._number_of(value)]
        if isinstance(value, (tuple, list)):
            return type(value)([self._argument(item) for item in value])
        return value

    # Native code calls the following methods.

    def source(self, node: Node) -> Any:
        """Return the `from_node` record of the nodes that are created for a call."""
        return self._sources.of_trace(node)

    def copied(self, value: Any) -> Any:
        """Return a shallow copy."""
        return copy.copy(value)

    def attributes(self, device: torch.device) -> dict[str, Any]:
        """Return the attributes of fake tensors on a device."""
        return self._fakes.attributes(device)

    def storage(self, storage: Storage) -> Any:
        """Return torch's storage for a storage of the plan."""
        if storage.made is None:
            nbytes = self._symbols.size(storage.nbytes)
            storage.made = self._fakes.storage(nbytes, storage.state)
        return storage.made

    def missing(self, node: Node) -> None:
        """Raise UnsafeError: a node of a call's instance needs a number that no node computes."""
        raise UnsafeError(f"node {node.name!r} needs a size that no node of the program computes")

    def counted(self, item: tuple[Any, int]) -> tuple[str, str]:
        """Return a node's `torch_fn`; `item` is (function, number of its call in the instance)."""
        function, count = item
        name = function.__name__
        calls = self._calls.get(function, 0) + count
        return f"{name}_{calls}", f"{type(function).__name__}.{name}"

    def count(self, template: Template) -> None:
        """Count the calls of torch functions that the trace of an instantiated template made."""
        for function, count in template.calls:
            self._calls[function] = self._calls.get(function, 0) + count

    def _tensor(self, facts: Facts, storage: Storage) -> Any:
        return self._fakes.tensor(*self._symbols.facts(facts)[:5], self.storage(storage), False)

    def _input_meta(self, number: int, entry: Input) -> dict[str, Any]:
        kind, target = entry.spec.kind, entry.spec.target
        old = entry.old.meta
        if kind is InputKind.USER_INPUT:
            index = number - self._first_user_input
            if type(entry.value) is not Value:
                described = {"desc": compat.PlainInput(index), "val": old["val"]}
                if type(entry.value) is Number or _sets_value(old["val"]):
                    described["desc"] = described.pop("desc")  # torch's order: `val` first
                return described
            fake = self._tensor(entry.value.facts, entry.value.storage)
            fake.requires_grad = old["val"].requires_grad
            return {
                "val": fake,
                "tensor_meta": compat.tensor_metadata(old["val"]),
                "desc": compat.PlainInput(index),
            }
        describe = compat.ParamInput if kind is InputKind.PARAMETER else compat.BufferInput
        value = entry.value
        assert type(value) is Value
        if kind is InputKind.CONSTANT_TENSOR:
            fake = self._tensor(value.facts, value.storage)
            return {
                "val": fake,
                "tensor_meta": compat.tensor_metadata(fake),
                "desc": describe(target),
            }
        meta: dict[str, Any] = {"val": None, "tensor_meta": None, "desc": describe(target)}
        meta.update(self._attribute_meta(entry.old))
        if meta["val"] is None or meta["tensor_meta"] is None:
            fake = self._tensor(value.facts, value.storage)
            fake.requires_grad = value.facts.requires_grad
            meta["val"] = fake if meta["val"] is None else meta["val"]
            meta["tensor_meta"] = meta["tensor_meta"] or compat.tensor_metadata(fake)
        return meta

    def _attribute_meta(self, old: Node) -> dict[str, Any]:
        """Return torch's meta of a state input: meta of the placeholder and then of its users."""
        meta = {**old.meta, "from_node": None}
        last: Node | None = None
        for user in (
            sorted(old.users, key=self._order.__getitem__) if len(old.users) > 1 else old.users
        ):
            if user.op == "call_function":
                last = user
                for field in _GATHERED:
                    if field in user.meta:
                        meta[field] = user.meta[field]
        found = self._sources
        meta["from_node"] = found.of_unlifted(old) if last is None else found.of_module(last)
        meta.pop("nn_module_stack", None)
        meta.pop("stack_trace", None)
        return meta

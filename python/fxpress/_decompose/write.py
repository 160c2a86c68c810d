"""Write the new program's graph from a plan."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.export.graph_signature import InputKind

from fxpress._decompose import template as kinds
from fxpress._decompose.inputs import Input
from fxpress._decompose.names import Renamer
from fxpress._decompose.plan import Plan, Stamp
from fxpress._decompose.sources import Sources
from fxpress._decompose.template import TemplateNode, TensorSpec
from fxpress._decompose.values import Facts, Storage, Value
from fxpress._torch import decompose as compat


def live_nodes(plan: Plan) -> bytearray:
    """Return a byte for each node of the new trace: 1 where it stays."""
    live = bytearray(plan.size)
    _mark_output(plan.output, live)
    for stamp in reversed(plan.stamps):
        first, inputs = stamp.first, stamp.inputs
        nodes = stamp.template.nodes
        for place in range(len(nodes) - 1, -1, -1):
            node = nodes[place]
            if live[first + place] or node.is_impure:
                live[first + place] = 1
                for used in node.uses:
                    live[inputs[-1 - used] if used < 0 else first + used] = 1
    return live


def _mark_output(value: Any, live: bytearray) -> None:
    if type(value) is Value:
        live[value.node] = 1
    elif isinstance(value, (tuple, list)):
        for item in value:
            _mark_output(item, live)


_GATHERED = tuple(f for f in compat.COPIED_META if f not in ("custom", "from_node"))


class Writer:
    """Writes the graph.

    Args:
        plan: the plan, at its end.
        inputs: the inputs of the new program.
        sources: records of where nodes come from.
        fakes: makes tensors of the program's fake mode.
        graph: an empty graph.
    """

    def __init__(
        self, plan: Plan, inputs: list[Input], sources: Sources, fakes: compat.Fakes, graph: Graph
    ) -> None:
        self._plan = plan
        self._inputs = inputs
        self._sources = sources
        self._fakes = fakes
        self._graph = graph
        self._nodes: list[Any] = [None] * plan.size
        self._order = {node: place for place, node in enumerate(plan.nodes)}
        self._calls: dict[Any, int] = {}
        self._sequence = compat.next_sequence_number()

    def write(self, names: list[str], renamer: Renamer) -> Node:
        """Write all nodes.

        Args:
            names: the names of the placeholders.
            renamer: has taken them.

        Returns:
            The output.
        """
        graph, live = self._graph, live_nodes(self._plan)
        create_name = graph._graph_namespace.create_name
        for number in range(len(self._inputs)):
            create_name(f"arg{number}_1", None)
        raw = [
            create_name(node.candidate, None)
            for stamp in self._plan.stamps
            for node in stamp.template.nodes
        ]
        output = create_name("output", None)
        for number, entry in enumerate(self._inputs):
            node = self._nodes[number] = compat.append(
                graph, names[number], "placeholder", names[number], (), {}
            )
            node.meta = self._input_meta(number, entry)
        first = len(self._inputs)
        for stamp in self._plan.stamps:
            self._write_stamp(stamp, live, raw, first, renamer)
        returned = self._argument(self._plan.output)
        name = renamer.node(output)
        return compat.append(graph, name, "output", "output", (returned,), {})

    def _argument(self, value: Any) -> Any:
        if type(value) is Value:
            return self._nodes[value.node]
        if isinstance(value, (tuple, list)):
            return type(value)([self._argument(item) for item in value])
        return value

    def _write_stamp(
        self, stamp: Stamp, live: bytearray, raw: list[str], offset: int, renamer: Renamer
    ) -> None:
        template, first, inputs, nodes = stamp.template, stamp.first, stamp.inputs, self._nodes
        numbers = template.numbers
        source = None

        def new_node(old: Node) -> Node:
            number = numbers[old]
            return nodes[inputs[-1 - number] if number < 0 else first + number]

        for place, node in enumerate(template.nodes):
            number = first + place
            if not live[number]:
                continue
            args = torch.fx.node.map_arg(node.args, new_node)
            kwargs = torch.fx.node.map_arg(node.kwargs, new_node) if node.kwargs else {}
            name = renamer.node(raw[number - offset])
            new = nodes[number] = compat.append(
                self._graph, name, "call_function", node.target, args, kwargs
            )
            if source is None:
                source = self._sources.of_trace(stamp.node)
            new.meta = self._meta(node, stamp, source)
        for function, count in template.calls:
            self._calls[function] = self._calls.get(function, 0) + count

    def _meta(self, node: TemplateNode, stamp: Stamp, source: Any) -> dict[str, Any]:
        old = stamp.node.meta
        meta: dict[str, Any] = {}
        for key, how, item in node.meta:
            if how == kinds.LITERAL:
                meta[key] = item
            elif how == kinds.COPIED:
                meta[key] = copy.copy(old[key])
            elif how == kinds.STACK:
                meta[key] = old[key]
            elif how == kinds.SOURCE:
                meta[key] = [source]
            elif how == kinds.VALUE:
                meta[key] = self._value(node.value, stamp.storages)
            elif how == kinds.SEQUENCE:
                meta[key] = self._sequence
            elif how == kinds.COUNTED:
                function, count = item
                meta[key] = (
                    f"{function.__name__}_{self._calls.get(function, 0) + count}",
                    f"{type(function).__name__}.{function.__name__}",
                )
            else:
                meta[key] = copy.copy(item)
        return meta

    def _value(self, value: Any, storages: list[Storage]) -> Any:
        if type(value) is TensorSpec:
            return self._tensor(value.facts, storages[value.storage])
        if type(value) in (list, tuple):
            return type(value)([self._value(item, storages) for item in value])
        return value

    def _tensor(self, facts: Facts, storage: Storage) -> Any:
        if storage.made is None:
            storage.made = self._fakes.storage(storage.nbytes, storage.state)
        return self._fakes.tensor(*facts[:5], storage.made, False)

    def _input_meta(self, number: int, entry: Input) -> dict[str, Any]:
        kind, target = entry.spec.kind, entry.spec.target
        old = entry.old.meta
        if kind is InputKind.USER_INPUT:
            given = number - self._first_given()
            if entry.value is None:
                described = {"desc": compat.PlainInput(given), "val": old["val"]}
                if type(old["val"]) is float:
                    described["desc"] = described.pop("desc")
                return described
            fake = self._tensor(entry.value.facts, entry.value.storage)
            fake.requires_grad = old["val"].requires_grad
            return {
                "val": fake,
                "tensor_meta": compat.tensor_metadata(old["val"]),
                "desc": compat.PlainInput(given),
            }
        describe = compat.ParamInput if kind is InputKind.PARAMETER else compat.BufferInput
        value = entry.value
        assert value is not None
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

    def _first_given(self) -> int:
        return sum(entry.spec.kind is not InputKind.USER_INPUT for entry in self._inputs)

    def _attribute_meta(self, old: Node) -> dict[str, Any]:
        """Return the meta that torch gathers for state: a part of it is that of the last user."""
        meta = {**old.meta, "from_node": None}
        last: Node | None = None
        for user in sorted(old.users, key=self._order.__getitem__) if len(old.users) > 1 else old.users:
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

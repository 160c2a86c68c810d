"""Make the graphs that Model Explorer draws of a program's text.

A graph is plain data, as in the JSON files that Model Explorer reads: nodes with an id, a label, a
namespace ("a/b": nested layers), attributes, incoming edges and facts of inputs and outputs.
"""

from __future__ import annotations

import json
import marshal
import os
from collections import deque
from collections.abc import Iterator
from typing import Any

from fxpress import _native
from fxpress._inspection.arguments import bodies_in, readable, values_in
from fxpress._inspection.fields import (
    DAMAGE,
    a_list,
    a_text,
    an_object,
    damage,
    damage_is_named,
    one_of,
    parse,
)
from fxpress._inspection.package import InspectionError, Package
from fxpress._inspection.stored import STATE
from fxpress._inspection.summary import kind_of, model_records
from fxpress._inspection.tensors import expression, size_of, tensor_of
from fxpress._view.facts import TAG
from fxpress._view.namespaces import Namespaces
from fxpress._view.ranges import cut_long_layers

Graph = dict[str, Any]
_Attributes = list[dict[str, Any]]
_Source = tuple[str, str, list[str]]  # the node of a value, the number of its output, its users
_NO_REFERENCES = 2  # the version of marshal's format in which equal values have equal bytes
_OTHER_SOURCES = (("torch_fn", "torch function"), ("custom", "custom"))  # fields -> attributes
_LONGEST = 400  # characters of an attribute
_LONGEST_NAME = 100  # characters of a part of a graph's id
_DEPTH = 60  # graphs within each other
# The kind of an input in a signature -> the field with its name in the state.
_KINDS = {**{kind: place.field for kind, place in STATE.items()}, "custom_obj": "custom_obj_name"}


def graphs_of_file(path: str | os.PathLike[str]) -> list[Graph]:
    """Return the graphs of a file's programs, each followed by those of its operators' bodies.

    Raises:
        OSError: the file cannot be read.
        InspectionError: it is no file of exported programs, or it is damaged.
    """
    return [graph for graphs in graphs_by_program(path).values() for graph in graphs]


def graphs_by_program(path: str | os.PathLike[str]) -> dict[str, list[Graph]]:
    """Return for each program of a file its graph, followed by those of its operators' bodies.

    Raises:
        OSError, InspectionError: as `graphs_of_file`.
    """
    with Package(path) as package:
        kind_of(package)
        return {
            name: graphs_of_text(package.read(record), name, record, package)
            for name, record in model_records(package)
        }


def graphs_of_text(
    text: bytes, name: str, record: str, package: Package | None = None
) -> list[Graph]:
    """Return the graphs of a program's JSON text.

    Args:
        text: what `fxpress.serialize` writes.
        name: the program's name.
        record: where the text is from, for errors.
        package: the file that it is of, whose memory is charged; None: the text is all of it.

    Raises:
        InspectionError: the text is damaged.
    """
    with _native.GcPause():  # none of the values that are made here are garbage at the end
        return _graphs(parse(text, record, package), name, record)


def _graphs(document: dict[str, Any], name: str, record: str) -> list[Graph]:
    with damage_is_named(f"record {record!r}"):
        module = an_object(document["graph_module"])
        signature = an_object(module["signature"])
        graph = an_object(module["graph"])
    made: list[Graph] = []
    _Writer(graph, signature, name, f"record {record!r}: graph", made, 0)
    attributes = made[0]["groupNodeAttributes"].setdefault("", {})
    with damage_is_named(f"record {record!r}: range_constraints"):
        for symbol, bounds in an_object(document.get("range_constraints") or {}).items():
            lower, upper = (an_object(bounds).get(end) for end in ("min_val", "max_val"))
            attributes[f"symbol {expression(symbol)}"] = f"{lower} to {upper}"
        for number, guard in enumerate(a_list(document.get("guards_code") or [])):
            attributes[f"guard {number}"] = _cut(a_text(guard))
    return made


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."


def _pairs(values: dict[str, str]) -> _Attributes:
    return [{"key": key, "value": value} for key, value in values.items() if value]


class _Writer:
    """One graph: writes its nodes in order, and remembers which node computes which value.

    Lists and dicts that are equal in many nodes are made once.
    """

    def __init__(
        self,
        graph: dict[str, Any],
        signature: dict[str, Any] | None,
        name: str,
        place: str,
        made: list[Graph],
        depth: int,
    ) -> None:
        if depth > _DEPTH:
            raise InspectionError(f"{place}: more than {_DEPTH} graphs within each other")
        self._made, self._name, self._place, self._depth = made, name, place, depth
        self._sources: dict[str, _Source] = {}  # by the names of values
        self._users: list[tuple[dict[str, Any], list[str]]] = []  # of each node
        self._nodes: list[dict[str, Any]] = []
        self._shared = _Shared()
        self._namespaces = Namespaces(_stacks(graph, place))
        with damage_is_named(place):
            self._tensors = an_object(graph["tensor_values"])
            nodes = a_list(graph["nodes"])
        made.append({"id": name, "nodes": self._nodes, "groupNodeAttributes": {}})
        position = len(made) - 1
        with damage_is_named(f"{place}.inputs"):
            specs = a_list(signature["input_specs"]) if signature else []
            for number, given in enumerate(a_list(graph["inputs"])):
                self._input(number, given, specs[number] if number < len(specs) else None)
        number = 0
        try:
            for number, node in enumerate(nodes):
                self._node(number, an_object(node))
        except DAMAGE as error:
            raise damage(f"{place}.nodes[{number}]", error) from None
        with damage_is_named(f"{place}.outputs"):
            outputs = a_list(signature["output_specs"]) if signature else []
            self._outputs(a_list(graph["outputs"]), outputs)
        for written, users in self._users:
            if users:
                value = {"type": "node_ids", "nodeIds": users}
                written["attrs"].append({"key": "users", "value": value})
        made[position]["groupNodeAttributes"] = self._namespaces.attributes()
        cut_long_layers(made[position])

    def _input(self, number: int, given: Any, spec: Any) -> None:
        name = next((name for _, name in values_in(given)), None)
        if name is None:
            return  # a constant
        kind, held = ("input", {}) if spec is None else one_of(spec)
        target = a_text(an_object(held or {}).get(_KINDS.get(kind, ""), ""))
        label = target.rpartition(".")[2] or name
        attributes = {
            "name": name,
            "kind": kind.replace("_", " "),
            "state": target,
            "persistent": str(held["persistent"]) if kind == "buffer" else "",
        }
        facts = self._facts(name)
        layer = self._namespaces.of_state(target) if target else "inputs"
        node = self._new(f"input {number}", label, layer, [*_pairs(attributes), *facts])
        if target:
            sizes = [pair["value"] for pair in facts if pair["key"] == "bytes"]
            self._namespaces.count(target, sizes[0] if sizes else "")
        self._results(node, [name])

    def _node(self, number: int, stored: dict[str, Any]) -> None:
        metadata = an_object(stored["metadata"])
        label, target = self._shared.target(stored["target"])
        own_name = a_text(stored.get("name") or "")
        layer = self._namespaces.of_stack(metadata.get("nn_module_stack", ""))
        attributes = [target]
        if own_name:
            attributes.append({"key": "name", "value": own_name})
        node = self._new(f"node {number}", label, layer, attributes)
        for position, argument in enumerate(a_list(stored["inputs"])):
            name = a_text(argument["name"]) or str(position)
            held = argument["arg"]
            if type(held) is dict and len(held) == 1:  # most arguments: a tensor, or a constant
                ((kind, inner),) = held.items()
                if kind == "as_tensor" and type(inner) is dict and type(inner.get("name")) is str:
                    self._edge(node, inner["name"], name)
                    continue
                if type(inner) in (int, bool, float, str) and kind != "as_name":
                    attributes.append(self._shared.constant(name, inner))
                    continue
            values = [value for _, value in values_in(held)]
            for value in values:
                self._edge(node, value, name)
            if not values:
                attributes += _pairs({name: _cut(str(readable(held)))})
            for body_number, body in enumerate(bodies_in(held)):
                own = _cut(own_name or node["id"], _LONGEST_NAME)
                inside = f"{self._name}/{own}/{_cut(name, _LONGEST_NAME)}"
                inside += f" {body_number}" if body_number else ""
                node.setdefault("subgraphIds", []).append(inside)
                place = f"{self._place}.nodes[{number}].{name}"
                _Writer(body, None, inside, place, self._made, self._depth + 1)
        attributes += self._shared.source(metadata)
        outputs = stored["outputs"]
        if len(outputs) == 1 and type(outputs) is list and "as_tensor" in outputs[0]:
            self._results(node, [a_text(outputs[0]["as_tensor"]["name"])])
        else:
            self._results(node, [value for _, value in values_in(outputs)])

    def _outputs(self, outputs: list[Any], specs: list[Any]) -> None:
        node = self._new("output", "outputs", "", [])
        for number, given in enumerate(outputs):
            what = str(number)
            if number < len(specs):
                kind, held = one_of(specs[number])
                held = an_object(held)
                target = next((v for k, v in held.items() if k != "arg" and type(v) is str), "")
                what += "" if kind == "user_output" else f" {kind.replace('_', ' ')} {target}"
            values = [value for _, value in values_in(given)]
            for value in values:
                self._edge(node, value, what)
            shown = values[0] if values else _cut(str(readable(given)))
            node["attrs"] += _pairs({f"output {what}": shown})

    def _new(
        self, node_id: str, label: str, namespace: str, attributes: _Attributes
    ) -> dict[str, Any]:
        node: dict[str, Any] = {
            "id": node_id,
            "label": label,
            "namespace": namespace,
            "attrs": attributes,
            "incomingEdges": [],
            "inputsMetadata": [],
            "outputsMetadata": [],
        }
        self._nodes.append(node)
        return node

    def _edge(self, node: dict[str, Any], value: str, argument: str) -> None:
        source = self._sources.get(value)
        if source is None:
            raise ValueError(f"no value {value!r} was computed before")
        node_id, output, users = source
        edges = node["incomingEdges"]
        described = self._shared.argument(len(edges), argument)
        node["inputsMetadata"].append(described)
        number = described["id"]
        edges.append(
            {"sourceNodeId": node_id, "sourceNodeOutputId": output, "targetNodeInputId": number}
        )
        if not users or users[-1] != node["id"]:
            users.append(node["id"])

    def _results(self, node: dict[str, Any], values: list[str]) -> None:
        users: list[str] = []
        self._users.append((node, users))
        outputs = node["outputsMetadata"]
        for value in values:
            number = str(len(outputs))
            self._sources[value] = node["id"], number, users
            attributes = [{"key": TAG, "value": value}, *self._facts(value)]
            outputs.append({"id": number, "attrs": attributes})

    def _facts(self, value: str) -> _Attributes:
        """Return what is known of a tensor, as attributes: none for other values."""
        meta = self._tensors.get(value)
        return [] if meta is None else self._shared.tensor(meta)


class _Shared:
    """What nodes of a graph have in common, made once."""

    def __init__(self) -> None:
        self._targets: dict[str, tuple[str, dict[str, Any]]] = {}
        self._constants: dict[tuple[str, type, Any], dict[str, Any]] = {}
        self._arguments: dict[tuple[int, str], dict[str, Any]] = {}
        self._stacks: dict[str, _Attributes] = {}
        self._tensors: dict[bytes, _Attributes] = {}

    def target(self, target: Any) -> tuple[str, dict[str, Any]]:
        """Return the label of an operator, and the attribute that names it."""
        known = self._targets.get(target)
        if known is None:
            text = a_text(target)
            named = {"key": "target", "value": text.removeprefix("torch.ops.")}
            known = self._targets[text] = (_label(text), named)
        return known

    def constant(self, name: str, value: Any) -> dict[str, Any]:
        """Return the attribute of an argument."""
        key = (name, type(value), value)
        known = self._constants.get(key)
        if known is None:
            known = self._constants[key] = {"key": name, "value": _cut(str(value))}
        return known

    def argument(self, number: int, name: str) -> dict[str, Any]:
        """Return the description of an argument that is a value.

        Model Explorer adds what is known of the value.

        Args:
            number: its place among those of the node.
            name: its name.
        """
        known = self._arguments.get((number, name))
        if known is None:
            described = {"id": str(number), "attrs": [{"key": TAG, "value": name}]}
            known = self._arguments[number, name] = described
        return known

    def source(self, metadata: dict[str, Any]) -> _Attributes:
        """Return the attributes that tell where a node is from, as a new list."""
        stack = metadata.get("stack_trace", "")
        known = self._stacks.get(stack)
        if known is None:
            known = self._stacks[stack] = _pairs(_of_stack(a_text(stack)))
        found = [*known]
        history = metadata.get("from_node", "")
        if history not in ("", "[]"):
            found += _pairs({"from": "\n".join(_history(a_text(history)))})
        for field, key in _OTHER_SOURCES:
            if text := metadata.get(field):
                found.append({"key": key, "value": _cut(a_text(text))})
        return found

    def tensor(self, meta: dict[str, Any]) -> _Attributes:
        """Return the attributes of a tensor."""
        fields = (meta["dtype"], meta["sizes"], meta["strides"], meta["device"])
        key = marshal.dumps(fields, _NO_REFERENCES)  # equal for equal values
        known = self._tensors.get(key)
        if known is None:
            known = self._tensors[key] = _tensor_attributes(meta)
        return known


def _tensor_attributes(meta: dict[str, Any]) -> _Attributes:
    tensor = tensor_of(meta)
    strides = [str(size_of(stride)) for stride in a_list(meta["strides"])]
    device = an_object(meta["device"])
    index = device.get("index")
    return _pairs(
        {
            "shape": f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]",
            "strides": ", ".join(strides),
            "device": a_text(device["type"]) + ("" if index is None else f":{index}"),
            "bytes": "" if tensor.bytes is None else f"{tensor.bytes:,}",
        }
    )


def _stacks(graph: dict[str, Any], place: str) -> Iterator[str]:
    """Yield the modules in which the nodes of a graph were traced, each stack once."""
    with damage_is_named(f"{place}.nodes"):
        known = {node["metadata"].get("nn_module_stack", ""): None for node in graph["nodes"]}
        for stack in known:
            yield a_text(stack)


def _label(target: str) -> str:
    """Return the name of an operator without its library and overload."""
    parts = target.removeprefix("torch.ops.").split(".")
    return parts[1] if target.startswith("torch.ops.") and len(parts) > 1 else parts[-1]


def _history(text: str) -> Iterator[str]:
    """Yield the nodes that a node was made from, the latest first, as a file tells them."""
    if _native.is_nested_deeper(text.encode(), _DEPTH):
        raise InspectionError("from_node is nested too deeply")
    waiting = deque(a_list(json.loads(text)))
    while waiting:
        each = an_object(waiting.popleft())
        target = f" ({each['target']})" if each.get("target") else ""
        yield _cut(f"{each.get('name') or 'a node'}{target}, {each.get('pass_name') or 'unknown'}")
        waiting += a_list(each.get("from_node") or [])


def _of_stack(stack: str) -> dict[str, str]:
    """Return what a stack trace tells, as attributes."""
    lines = [line.strip() for line in stack.strip().split("\n")]
    places = [line for line in lines if line.startswith("File ")]
    return {
        "source": _cut("\n".join(lines[-2:])) if places else "",
        "stack": "\n".join(_cut(line) for line in lines) if len(places) > 1 else "",
    }

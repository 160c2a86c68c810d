"""Make the graphs that Model Explorer draws of a program's text.

A graph is plain data, as in the JSON files that Model Explorer reads: nodes with an id, a label, a
namespace ("a/b": nested layers), attributes, incoming edges and facts of inputs and outputs.
"""

from __future__ import annotations

import json
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

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
from fxpress._inspection.tensors import expression
from fxpress._view.collector import make_old
from fxpress._view.facts import TAG
from fxpress._view.namespaces import Namespaces
from fxpress._view.ranges import cut_long_layers
from fxpress._view.shared import NO_TENSOR, Attribute, Shared, TensorFacts, cut, pairs

Graph = dict[str, Any]
# Of a value: its node, the number of its output, the node's users, what is known of the value.
_Source = tuple[str, str, list[str], TensorFacts]
_OTHER_SOURCES = (("torch_fn", "torch function"), ("custom", "custom"))  # fields -> attributes
_CONSTANTS = (int, bool, str)  # types of arguments that are shown as they are
_NUMBERS = frozenset((int, bool, float))  # types of what has no values and graphs in it
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
        made = _graphs(parse(text, record, package), name, record)
        make_old()
    return made


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
            attributes[f"guard {number}"] = cut(a_text(guard))
    return made


class _Sources(dict[str, _Source]):
    """Where values are from, by their names."""

    def __missing__(self, value: str) -> NoReturn:
        raise ValueError(f"no value {value!r} was computed before")


class _Writer:
    """One graph: writes its nodes in order, and remembers which node computes which value.

    What it has written it takes out of the text's values, so that they are freed while they are in
    the processor's caches, and their memory is used for what comes next.
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
        self._sources = _Sources()
        self._users: list[list[str]] = []  # of each node
        self._nodes: list[dict[str, Any]] = []
        self._shared = Shared()
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
        nodes.reverse()
        try:
            for number in range(len(nodes)):
                self._node(number, an_object(nodes.pop()))
        except DAMAGE as error:
            raise damage(f"{place}.nodes[{number}]", error) from None
        with damage_is_named(f"{place}.outputs"):
            outputs = a_list(signature["output_specs"]) if signature else []
            self._outputs(a_list(graph["outputs"]), outputs)
        for written, users in zip(self._nodes, self._users, strict=True):
            if users:
                value = {"type": "node_ids", "nodeIds": users}
                written["attrs"].append({"key": "users", "value": value})
        made[position]["groupNodeAttributes"] = self._namespaces.attributes()
        cut_long_layers(made[position])

    def _input(self, number: int, given: Any, spec: Any) -> None:
        values = values_in(given)
        if not values:
            return  # a constant
        name = values[0][1]
        kind, held = ("input", {}) if spec is None else one_of(spec)
        target = a_text(an_object(held or {}).get(_KINDS.get(kind, ""), ""))
        path, _, own_name = target.rpartition(".")
        tensor = self._tensor(name)
        attributes = [{"key": "name", "value": name}] if name else []
        attributes += self._shared.kinds[kind]
        if target:
            attributes.append({"key": "state", "value": target})
        if kind == "buffer":
            attributes += pairs({"persistent": str(held["persistent"])})
        attributes += tensor.attributes
        layer = self._namespaces.of_state(path, tensor.bytes) if target else "inputs"
        self._new(f"input {number}", own_name or name, layer, attributes, [])
        self._result(name, tensor)

    def _node(self, number: int, stored: dict[str, Any]) -> None:
        shared = self._shared
        metadata = an_object(stored["metadata"])
        label, target = shared.targets[stored["target"]]
        own_name = a_text(stored.get("name") or "")
        layer = self._namespaces.of_stack[metadata.get("nn_module_stack", "")]
        attributes = [target]
        if own_name:
            attributes.append({"key": "name", "value": own_name})
        given: list[tuple[str, str]] = []
        bodies: list[tuple[str, int, Any]] = []
        for position, argument in enumerate(a_list(stored["inputs"])):
            name = a_text(argument["name"]) or str(position)
            held = argument["arg"]
            if type(held) is dict and len(held) == 1:  # most arguments: a tensor, or a constant
                ((kind, inner),) = held.items()
                if kind == "as_tensor" and type(inner) is dict and type(inner.get("name")) is str:
                    given.append((inner["name"], name))
                    continue
                if type(inner) in _CONSTANTS and kind != "as_name":
                    attributes.append(shared.constants[name, type(inner), inner])
                    continue
                if type(inner) is list and _NUMBERS.issuperset(map(type, inner)):
                    attributes.append({"key": name, "value": cut(str(readable(inner)))})
                    continue
            if values := values_in(held):
                given += [(value, name) for _, value in values]
            else:
                attributes += pairs({name: cut(str(readable(held)))})
            bodies += [(name, i, body) for i, body in enumerate(bodies_in(held))]
        attributes += shared.sources[metadata.get("stack_trace", "")]
        history = metadata.get("from_node", "")
        if history not in ("", "[]"):
            attributes += pairs({"from": "\n".join(_history(a_text(history)))})
        for field, key in _OTHER_SOURCES:
            if text := metadata.get(field):
                attributes.append(shared.others[key, text])
        node = self._new(f"node {number}", label, layer, attributes, given)
        if bodies:
            node["subgraphIds"] = [*self._bodies(number, own_name or node["id"], bodies)]
        outputs = stored["outputs"]
        if len(outputs) == 1 and type(outputs) is list and "as_tensor" in outputs[0]:
            name = a_text(outputs[0]["as_tensor"]["name"])
            self._result(name, self._tensor(name))
        else:
            for _, name in values_in(outputs):
                self._result(name, self._tensor(name))

    def _bodies(self, number: int, node: str, bodies: list[tuple[str, int, Any]]) -> Iterator[str]:
        """Write the graphs that a node is given, and yield their ids.

        Args:
            number: the place of the node.
            node: its name.
            bodies: the argument that each is in, its number there, and the graph.
        """
        for name, body_number, body in bodies:
            inside = f"{self._name}/{cut(node, _LONGEST_NAME)}/{cut(name, _LONGEST_NAME)}"
            inside += f" {body_number}" if body_number else ""
            place = f"{self._place}.nodes[{number}].{name}"
            _Writer(body, None, inside, place, self._made, self._depth + 1)
            yield inside

    def _outputs(self, outputs: list[Any], specs: list[Any]) -> None:
        taken: list[tuple[str, str]] = []
        attributes: list[Attribute] = []
        for number, given in enumerate(outputs):
            what = str(number)
            if number < len(specs):
                kind, held = one_of(specs[number])
                held = an_object(held)
                target = next((v for k, v in held.items() if k != "arg" and type(v) is str), "")
                what += "" if kind == "user_output" else f" {kind.replace('_', ' ')} {target}"
            values = [value for _, value in values_in(given)]
            taken += [(value, what) for value in values]
            shown = values[0] if values else cut(str(readable(given)))
            attributes += pairs({f"output {what}": shown})
        self._new("output", "outputs", "", attributes, taken)

    def _new(
        self,
        node_id: str,
        label: str,
        namespace: str,
        attributes: list[Attribute],
        given: Iterable[tuple[str, str]],
    ) -> dict[str, Any]:
        """Add a node without results.

        Args:
            node_id, label, namespace, attributes: of the node.
            given: the values that it takes, and the names of its arguments.
        """
        edges: list[dict[str, str]] = []
        inputs: list[dict[str, Any]] = []
        sources, arguments = self._sources, self._shared.arguments
        for place, (value, name) in enumerate(given):
            source, output, users, _ = sources[value]
            number, described = arguments[place, name]
            inputs.append(described)
            edges.append(
                {"sourceNodeId": source, "sourceNodeOutputId": output, "targetNodeInputId": number}
            )
            if not users or users[-1] != node_id:
                users.append(node_id)
        node: dict[str, Any] = {
            "id": node_id,
            "label": label,
            "namespace": namespace,
            "attrs": attributes,
            "incomingEdges": edges,
            "inputsMetadata": inputs,
            "outputsMetadata": [],
        }
        self._nodes.append(node)
        self._users.append([])
        return node

    def _result(self, value: str, tensor: TensorFacts) -> None:
        """Add a value to the results of the newest node."""
        node = self._nodes[-1]
        outputs = node["outputsMetadata"]
        number = str(len(outputs))
        self._sources[value] = node["id"], number, self._users[-1], tensor
        attributes = [{"key": TAG, "value": value}, *tensor.attributes]
        outputs.append({"id": number, "attrs": attributes})

    def _tensor(self, value: str) -> TensorFacts:
        """Return what is known of a value: nothing, unless it is a tensor."""
        meta = self._tensors.pop(value, None)
        if meta is not None:
            return self._shared.tensor(meta)
        # A damaged file may compute a value twice.
        return self._sources[value][3] if value in self._sources else NO_TENSOR


def _stacks(graph: dict[str, Any], place: str) -> Counter[str]:
    """Return the stacks of modules in which the nodes of a graph were traced, and their numbers."""
    with damage_is_named(f"{place}.nodes"):
        stacks = Counter([node["metadata"].get("nn_module_stack", "") for node in graph["nodes"]])
        for stack in stacks:
            a_text(stack)
    return stacks


def _history(text: str) -> Iterator[str]:
    """Yield the nodes that a node was made from, the latest first, as a file tells them."""
    if _native.is_nested_deeper(text.encode(), _DEPTH):
        raise InspectionError("from_node is nested too deeply")
    waiting = deque(a_list(json.loads(text)))
    while waiting:
        each = an_object(waiting.popleft())
        target = f" ({each['target']})" if each.get("target") else ""
        yield cut(f"{each.get('name') or 'a node'}{target}, {each.get('pass_name') or 'unknown'}")
        waiting += a_list(each.get("from_node") or [])

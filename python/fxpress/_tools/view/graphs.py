"""Make the graphs that Model Explorer draws of a program's text.

A graph is plain data, as in the JSON files that Model Explorer reads: nodes with an id, a label, a
namespace ("a/b": nested layers), attributes, incoming edges and facts of inputs and outputs.
"""

from __future__ import annotations

import os
from typing import Any

from fxpress import _native
from fxpress._files.format.fields import (
    DAMAGE,
    a_list,
    a_text,
    an_object,
    damage,
    damage_is_named,
    one_of,
)
from fxpress._files.format.package import Allowance, InspectionError, Package
from fxpress._files.format.places import read_places
from fxpress._files.format.stored import STATE
from fxpress._files.format.tensors import expression
from fxpress._tools.inspect.arguments import readable
from fxpress._tools.inspect.summary import kind_of, model_records
from fxpress._tools.view.collector import make_old
from fxpress._tools.view.namespaces import Namespaces
from fxpress._tools.view.ranges import cut_long_layers
from fxpress._tools.view.shared import (
    METADATA,
    NO_TENSOR,
    Attribute,
    cut,
    describe_argument,
    describe_kind,
    describe_persistent,
    describe_target,
    describe_tensor,
    names_in,
    pairs,
)

Graph = dict[str, Any]
_LONGEST_NAME = 100  # characters of a part of a graph's id
_DEPTH = 60  # graphs within each other
_DESCRIBE: dict[str, Any] = {
    "kind": describe_kind,
    "persistent": describe_persistent,
    "target": describe_target,
    "argument": describe_argument,
    "results": names_in,
    "tensor": describe_tensor,
    "no_tensor": NO_TENSOR,
}
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
    text: bytes, name: str, record: str, memory: Allowance | None = None
) -> list[Graph]:
    """Return the graphs of a program's JSON text.

    Args:
        text: what `fxpress.serialize` writes.
        name: the program's name.
        record: where the text is from, for errors.
        memory: what is charged, such as the file that it is of; None: the text is all of it.

    Raises:
        InspectionError: the text is damaged.
    """
    memory = memory or Allowance(len(text))
    with _native.GcPause():  # none of the values that are made here are garbage at the end
        made = _Program(record, memory).graphs(read_places(text, record, memory), name)
        make_old()
    return made


class _Program:
    """Makes the graphs of a program.

    Args:
        record: where its text is from.
        memory: what is charged.
    """

    def __init__(self, record: str, memory: Allowance) -> None:
        self._record, self._memory = record, memory
        self.made: list[Graph] = []  # each followed by those of its operators' bodies

    def graphs(self, document: _native.JsonValue, name: str) -> list[Graph]:
        """Return the graphs of a document, the program's own with this name."""
        with damage_is_named(f"record {self._record!r}"):
            module = document.field("graph_module")
            signature = module.field("signature")
            graph = module.field("graph")
        _Writer(self, graph, signature, name, f"record {self._record!r}: graph", 0)
        attributes = self.made[0]["groupNodeAttributes"].setdefault("", {})
        with damage_is_named(f"record {self._record!r}: range_constraints"):
            for symbol, bounds in an_object(
                self._optional(document, "range_constraints", {})
            ).items():
                lower, upper = (an_object(bounds).get(end) for end in ("min_val", "max_val"))
                attributes[f"symbol {expression(symbol)}"] = f"{lower} to {upper}"
            for number, guard in enumerate(a_list(self._optional(document, "guards_code", []))):
                attributes[f"guard {number}"] = cut(a_text(guard))
        return self.made

    def load(self, value: _native.JsonValue) -> Any:
        """Return a value of the text as Python's own."""
        self.charge(value.cost)
        return value.load()

    def charge(self, size: int) -> None:
        """Take memory; InspectionError when too little is left."""
        self._memory.charge(size, self._record)

    def _optional(self, document: _native.JsonValue, key: str, otherwise: Any) -> Any:
        try:
            return self.load(document.field(key)) or otherwise
        except KeyError:
            return otherwise


class _Writer:
    """One graph: native code writes its nodes, in order.

    Args:
        program: what the graph is added to.
        graph: the graph in the text.
        signature: of a program; None for a body.
        name: the graph's id.
        place: where it is, for errors.
        depth: how many graphs it is in.
    """

    def __init__(
        self,
        program: _Program,
        graph: _native.JsonValue,
        signature: _native.JsonValue | None,
        name: str,
        place: str,
        depth: int,
    ) -> None:
        if depth > _DEPTH:
            raise InspectionError(f"{place}: more than {_DEPTH} graphs within each other")
        self._program, self._name, self._place, self._depth = program, name, place, depth
        with damage_is_named(place):
            self._native = _native.GraphWriter(graph, _DESCRIBE, METADATA, program.charge)
            self._namespaces = Namespaces(self._native.stacks())
        made = {"id": name, "nodes": self._native.nodes, "groupNodeAttributes": {}}
        program.made.append(made)
        with damage_is_named(f"{place}.inputs"):
            specs = None if signature is None else signature.field("input_specs")
            self._native.write_inputs(specs, _KINDS, self._namespaces.of_state)
        try:
            self._native.write(self._namespaces.of_stack.__getitem__, self._bodies)
        except DAMAGE as error:
            raise damage(f"{place}.nodes[{self._native.number}]", error) from None
        with damage_is_named(f"{place}.outputs"):
            outputs = [] if signature is None else program.load(signature.field("output_specs"))
            self._outputs(a_list(program.load(graph.field("outputs"))), a_list(outputs))
        self._native.add_users()
        made["groupNodeAttributes"] = self._namespaces.attributes()
        cut_long_layers(made)

    def _bodies(
        self, number: int, node: str, bodies: list[tuple[str, int, _native.JsonValue]]
    ) -> list[str]:
        """Write the graphs that a node is given, and return their ids.

        Args:
            number: the place of the node.
            node: its name.
            bodies: the argument that each is in, its number there, and the graph.
        """
        ids = []
        for name, body_number, body in bodies:
            inside = f"{self._name}/{cut(node, _LONGEST_NAME)}/{cut(name, _LONGEST_NAME)}"
            inside += f" {body_number}" if body_number else ""
            place = f"{self._place}.nodes[{number}].{name}"
            _Writer(self._program, body, None, inside, place, self._depth + 1)
            ids.append(inside)
        return ids

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
            values = names_in(given)
            taken += [(value, what) for value in values]
            shown = values[0] if values else cut(str(readable(given)))
            attributes += pairs({f"output {what}": shown})
        self._native.add("output", "outputs", "", attributes, taken)

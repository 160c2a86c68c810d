"""Describe single nodes of a program."""

from __future__ import annotations

import os
import re
from typing import Any, NamedTuple

from fxpress._files.format import fields
from fxpress._files.format.fields import expect_list, expect_object, expect_str
from fxpress._files.format.package import Package
from fxpress._files.format.tensors import tensor_of
from fxpress._tools.inspect.arguments import readable, values_in
from fxpress._tools.inspect.program import nodes_of
from fxpress._tools.inspect.summary import kind_of, model_records

_LONGEST = 200  # how many characters of an argument are shown
_PLACE = re.compile(r"(?:(?:graph_module\.)?graph\.)?nodes\[(\d{1,9})\](?:\..*)?", re.DOTALL)


class NodeSummary(NamedTuple):
    """A node of a program in a file."""

    program: str  # the name of its program
    target: str  # the operator
    arguments: list[tuple[str, str]]  # name and value of each argument
    outputs: list[tuple[str, str]]  # name and type of each result
    metadata: dict[str, str]  # metadata as text, such as "stack_trace"


def find_nodes(path: str | bytes | os.PathLike[str], name: str) -> list[NodeSummary]:
    """Return the nodes of this name, or with a result of this name; or the node at "nodes[8]"."""
    found = []
    place = _PLACE.fullmatch(name)
    with Package(path) as package:
        kind_of(package)
        for program, record in model_records(package):
            document = fields.parse(package.read(record), record, package)
            with fields.damage_is_named(f"record {record!r}"):
                graph = expect_object(expect_object(document["graph_module"])["graph"])
                metas = expect_object(graph["tensor_values"])
                wanted = expect_list(graph["nodes"])[int(place[1]) :][:1] if place else None
            for node in nodes_of(graph, f"record {record!r}") if wanted is None else wanted:
                with fields.damage_is_named(f"record {record!r}: a node"):
                    outputs = [v for each in expect_list(node["outputs"]) for v in _values(each)]
                    names = {node.get("name"), *(each for each, _ in outputs)}
                    if wanted is not None or name in names:
                        found.append(_summary(program, node, outputs, metas))
    return found


def _summary(
    program: str, node: dict[str, Any], outputs: list[tuple[str, str]], metas: dict[str, Any]
) -> NodeSummary:
    return NodeSummary(
        program,
        expect_str(node["target"]),
        [(expect_str(each["name"]), _argument(each["arg"])) for each in node["inputs"]],
        [
            (name, str(tensor_of(metas[name])) if kind == "tensor" and name in metas else kind)
            for name, kind in outputs
        ],
        {key: expect_str(value) for key, value in expect_object(node["metadata"]).items()},
    )


def _values(argument: Any) -> list[tuple[str, str]]:
    """Return name and type of each value of a result, which is one value or a list."""
    kind, held = fields.expect_one_of(argument)
    kind = kind.removeprefix("as_")
    if kind == "custom_obj":
        return [(expect_str(expect_object(held)["name"]), kind)]
    found = values_in(argument)
    return [(n, "tensor" if is_tensor else kind) for is_tensor, n in found] or [("", kind)]


def _argument(argument: Any) -> str:
    kind, held = fields.expect_one_of(argument)
    if kind == "as_none":
        return "None"
    text = str(readable(held))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."

"""Read what the graphs of Model Explorer say of a node."""

from __future__ import annotations

import re
from typing import Any

TAG = "__tensor_tag"  # Model Explorer's key for the name of a value
_SHAPE = re.compile(r"\w+\[([\d, ]*)\]")


def facts_of(item: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a node, an input or an output by their keys."""
    return {pair["key"]: pair["value"] for pair in item["attrs"]}


def sizes_of(shape: str) -> list[int] | None:
    """Return the sizes in a text such as "float32[2, 3]"; None where one is a symbol."""
    match = _SHAPE.fullmatch(shape)
    return None if match is None else [int(size) for size in match[1].split(",") if size.strip()]


def bytes_of(items: list[dict[str, Any]]) -> int | None:
    """Return the bytes of a node's outputs; None where there are none or one is not known."""
    sizes = [facts_of(item).get("bytes") for item in items]
    if not sizes or None in sizes:
        return None
    return sum(int(size.replace(",", "")) for size in sizes if size is not None)


def given_to(node: dict[str, Any], nodes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what is known of the values that a node takes, by the names of its arguments.

    Args:
        node: the node.
        nodes: those of its graph, by their ids.
    """
    found = {}
    for edge, item in zip(node["incomingEdges"], node["inputsMetadata"], strict=True):
        outputs = nodes[edge["sourceNodeId"]]["outputsMetadata"]
        found[facts_of(item)[TAG]] = facts_of(outputs[int(edge["sourceNodeOutputId"])])
    return found


def module_of(graph: dict[str, Any], node: dict[str, Any]) -> str:
    """Return the path of the module that a node is shown in; the root's is empty."""
    path: str = graph["groupNodeAttributes"].get(node["namespace"], {}).get("module", "")
    return path

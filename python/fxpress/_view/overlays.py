"""Numbers that Model Explorer lays over the nodes of a graph: bytes, and operations."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from fxpress._view.graphs import Graph

_SHAPE = re.compile(r"\w+\[([\d, ]*)\]")
_COLORS = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e8710a"}]
_Sizes = list[int]


def overlays_of(graphs: Iterable[Graph]) -> dict[str, dict[str, Any]]:
    """Return each overlay by its name: a graph's id -> the value of each node.

    Nodes whose sizes are symbols have no value.
    """
    graphs = list(graphs)
    rules: dict[str, Callable[[dict[str, Any]], int | None]] = {
        "bytes of state": _state_bytes,
        "bytes of results": _result_bytes,
        "FLOPs": flops,
    }
    return {name: {g["id"]: _values(g, rule) for g in graphs} for name, rule in rules.items()}


def _values(graph: Graph, rule: Callable[[dict[str, Any]], int | None]) -> dict[str, Any]:
    found = ((node["id"], rule(node)) for node in graph["nodes"])
    results = {name: {"value": value} for name, value in found if value is not None}
    return {"results": results, "gradient": _COLORS}


def _facts(item: dict[str, Any]) -> dict[str, Any]:
    return {pair["key"]: pair["value"] for pair in item["attrs"]}


def _bytes(items: list[dict[str, Any]]) -> int | None:
    sizes = [_facts(item).get("bytes") for item in items]
    if not sizes or None in sizes:
        return None
    return sum(int(size.replace(",", "")) for size in sizes if size is not None)


def _is_state(node: dict[str, Any]) -> bool:
    return "state" in _facts(node)


def _state_bytes(node: dict[str, Any]) -> int | None:
    return _bytes(node["outputsMetadata"]) if _is_state(node) else None


def _result_bytes(node: dict[str, Any]) -> int | None:
    return None if _is_state(node) else _bytes(node["outputsMetadata"])


def flops(node: dict[str, Any]) -> int | None:
    """Return the floating-point operations of a node: two for each product that is added.

    Products of matrices, convolutions and attention count, as `torch.utils.flop_counter` counts
    them; None: another operator, or sizes that are symbols.
    """
    rule = _FLOPS.get(node["label"])
    if rule is None:
        return None
    given = [_facts(item) for item in node["inputsMetadata"]]
    shapes = {facts["__tensor_tag"]: _sizes(facts.get("shape", "")) for facts in given}
    results = [_facts(item) for item in node["outputsMetadata"][:1]]
    result = _sizes(results[0].get("shape", "")) if results else None
    try:
        return rule(shapes, result)  # type: ignore[arg-type]  # None is a TypeError here
    except (KeyError, IndexError, TypeError):
        return None


def _sizes(text: str) -> _Sizes | None:
    match = _SHAPE.fullmatch(text)
    return None if match is None else [int(size) for size in match[1].split(",") if size.strip()]


def _product(left: str) -> Callable[[dict[str, _Sizes], _Sizes], int]:
    """Return the rule for a product of matrices: of each row of `left` with each column."""
    return lambda shapes, result: 2 * math.prod(result) * shapes[left][-1]


def _convolution(shapes: dict[str, _Sizes], result: _Sizes) -> int:
    return 2 * math.prod(result) * math.prod(shapes["weight"][1:])


def _attention(shapes: dict[str, _Sizes], result: _Sizes) -> int:
    query, key = shapes["query"], shapes["key"]
    return 2 * math.prod(query[:-1]) * key[-2] * query[-1] + 2 * math.prod(result) * key[-2]


_FLOPS: dict[str, Callable[[dict[str, _Sizes], _Sizes], int]] = {
    **dict.fromkeys(("mm", "bmm", "matmul"), _product("self")),
    "addmm": _product("mat1"),
    "baddbmm": _product("batch1"),
    "linear": _product("input"),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    "scaled_dot_product_attention": _attention,
}

"""Nodes that compute the size of a tensor from the sizes of a program's inputs."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from fxpress._graphs.decompose import template as kinds
from fxpress._graphs.decompose.template import NumberSpec, TemplateNode
from fxpress._torch import symbols as compat


def parts_of(
    expression: Any, items: dict[str, tuple[str, str, Any]], numbers: dict[Any, int], first: int
) -> list[TemplateNode]:
    """Return what torch adds where nodes need the size of a tensor that the program computes."""
    graph = Graph()
    computed = compat.computed(expression, graph)
    if computed is None or "nn_module_stack" not in items:
        return []
    made: list[TemplateNode] = []
    symbols, parts = computed
    for part, node in (*symbols, *parts):
        is_symbol = node.op == "placeholder"
        uses = tuple([numbers[used] for used in node.all_input_nodes])
        meta = () if is_symbol else _meta(node, items)
        value = None if is_symbol else NumberSpec(part, int)
        target, name = (None, "number") if is_symbol else (node.target, _name(graph, node))
        numbers[node] = first + len(made)
        made.append(TemplateNode(target, node, uses, name, False, meta, value, part, is_symbol))
    return made


def _name(graph: Graph, node: Node) -> str:
    name: str = graph._target_to_str(node.target)
    return name


def _meta(node: Node, items: dict[str, tuple[str, str, Any]]) -> tuple[tuple[str, str, Any], ...]:
    target: Any = node.target
    return (
        ("val", kinds.VALUE, None),
        items.get("stack_trace", ("stack_trace", kinds.LITERAL, compat.TRACE)),
        items["nn_module_stack"],
        ("torch_fn", kinds.LITERAL, compat.function_of(target)),
        ("custom", kinds.COPIED_LITERAL, {}),
    )

"""Count floating-point operations from the shapes in a graph, for the example inputs' sizes.

Matrix products, convolutions and attention are counted with the formulas of
`torch.utils.flop_counter`: two operations for each multiplication and addition.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable

from fxpress._tools.view.nodes import Graph, Node, Value

_Sizes = list[int]
_Shapes = dict[str, _Sizes]  # name of an argument -> its sizes
_ONCE = (  # operators that run their body once
    *("wrap", "wrap_with_set_grad_enabled", "wrap_with_autocast", "wrap_activation_checkpoint"),
    *("tag_activation_checkpoint", "hints_wrapper", "invoke_subgraph"),
)
# Operators that consist of matrix products or convolutions, but have no formula in `_RULES`.
_MADE_OF_PRODUCTS = (
    *("einsum", "tensordot", "bilinear", "inner", "lstm", "gru", "rnn_tanh", "rnn_relu"),
    *("mv", "dot", "addmv", "chain_matmul", "linalg_multi_dot", "convolution_backward"),
)


@dataclasses.dataclass
class Count:
    """The floating-point operations of a program."""

    # Id of a graph -> id of a node -> its operations. An operator that runs its bodies once has the
    # sum of its bodies. `torch.cond` has, for each type of operator, the maximum of its branches.
    by_node: dict[str, dict[str, int]]
    total: int  # the operations of the program
    left_out: Counter[str]  # reason -> number of operators that are not counted
    # Id of a graph -> ids of the nodes that are not counted, or not counted in full.
    unknown: dict[str, set[str]]


def count_flops(graphs: list[Graph]) -> Count:
    """Count the operations of a program from its graph and the graphs of its operators' bodies."""
    by_node: dict[str, dict[str, int]] = {graph.id: {} for graph in graphs}
    count = Count(by_node, 0, Counter(), {graph.id: set() for graph in graphs})
    count.total = _count_graph(graphs[0], count).total()
    return count


def _count_graph(graph: Graph, count: Count) -> Counter[str]:
    """Count the operations of a graph by operator."""
    by_operator = Counter[str]()
    for node in graph.nodes:
        before = count.left_out.total()
        found = _count_node(node, count)
        inside = (count.unknown[body.id] for body in node.bodies)
        if count.left_out.total() > before or any(inside):
            count.unknown[graph.id].add(node.id)
        if found is not None:
            count.by_node[graph.id][node.id] = found.total()
            by_operator.update(found)
    return by_operator


def _count_node(node: Node, count: Count) -> Counter[str] | None:
    label = node.label
    if node.bodies:
        inside = [_count_graph(body, count) for body in node.bodies]
        if label == "cond":
            most = Counter[str]()
            for each in inside:
                most |= each
            return most
        if label in _ONCE:
            return sum(inside, Counter[str]())
        count.left_out[f"{label}: the number of runs of its body is unknown"] += 1
        return None
    if node.target is None or not is_product(label):
        return None
    if label in _MADE_OF_PRODUCTS:
        count.left_out[f"{label}: a formula is missing"] += 1
        return None
    number = _flops(node)
    if number is None:
        count.left_out[f"{label}: a size is unknown"] += 1
        return None
    return Counter({label: number})


def _flops(node: Node) -> int | None:
    """Return the operations of an operator with a formula; None if a size is unknown."""
    shapes = {each.name: _sizes(each.value) for each in node.arguments}
    result = _sizes(node.results[0]) if node.results else None
    is_transposed = ("transposed", "True") in node.constants
    rule = _transposed if is_transposed else _RULES[node.label]
    try:
        return rule(shapes, result)  # type: ignore[arg-type]  # None is a TypeError here
    except (KeyError, IndexError, TypeError, ZeroDivisionError):
        return None


def _sizes(value: Value) -> _Sizes | None:
    return None if value.tensor is None else value.tensor.sizes()


def is_product(label: str) -> bool:
    """Return whether an operator with this name consists of sums of products."""
    return label in _RULES or label in _MADE_OF_PRODUCTS


def _product(left: str) -> Callable[[_Shapes, _Sizes], int]:
    """Return the rule for a matrix product with the left argument `left`."""
    return lambda shapes, result: 2 * math.prod(result) * shapes[left][-1]


def _matmul(shapes: _Shapes, result: _Sizes) -> int:
    """Count 0 for a product with a vector, because torch runs it as an uncounted `mv` or `dot`."""
    return 0 if len(shapes["other"]) == 1 else _product("self")(shapes, result)


def _convolution(shapes: _Shapes, result: _Sizes) -> int:
    return 2 * math.prod(result) * math.prod(shapes["weight"][1:])


def _transposed(shapes: _Shapes, _: _Sizes) -> int:
    """Count a transposed convolution: each input element is multiplied by its channel's weights."""
    weight, given = shapes["weight"], shapes["input"]
    channels = given[1 - len(weight)]
    return 2 * math.prod(given) // channels * math.prod(weight)


def _attention(shapes: _Shapes, result: _Sizes) -> int:
    query, key = shapes["query"], shapes["key"]
    return 2 * math.prod(query[:-1]) * key[-2] * query[-1] + 2 * math.prod(result) * key[-2]


_ATTENTION = tuple(
    f"_scaled_dot_product_{kind}"
    for kind in (
        *("flash_attention", "flash_attention_for_cpu", "efficient_attention"),
        *("cudnn_attention", "fused_attention_overrideable"),
    )
)
_RULES: dict[str, Callable[[_Shapes, _Sizes], int]] = {
    **dict.fromkeys(("mm", "bmm", "_scaled_mm"), _product("self")),
    "matmul": _matmul,
    "addmm": _product("mat1"),
    "baddbmm": _product("batch1"),
    "linear": _product("input"),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution", "_convolution"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed),
    **dict.fromkeys(("scaled_dot_product_attention", *_ATTENTION), _attention),
}

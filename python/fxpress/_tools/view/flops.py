"""Count floating-point operations by the shapes that a graph of Model Explorer tells.

Products of matrices, convolutions and attention count, by the formulas of
`torch.utils.flop_counter`: two operations for each product that is added.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from fxpress._tools.view.facts import facts_of, given_to, sizes_of

_Sizes = list[int]
_Shapes = dict[str, _Sizes]  # by the name of the argument
_ONCE = (  # operators that run their body once
    *("wrap", "wrap_with_set_grad_enabled", "wrap_with_autocast", "wrap_activation_checkpoint"),
    *("tag_activation_checkpoint", "hints_wrapper", "invoke_subgraph"),
)
# Operators that have no formula here but are made of such products.
_MADE_OF_PRODUCTS = (
    *("einsum", "tensordot", "bilinear", "inner", "lstm", "gru", "rnn_tanh", "rnn_relu"),
    *("mv", "dot", "addmv", "chain_matmul", "linalg_multi_dot", "convolution_backward"),
)


@dataclasses.dataclass
class Count:
    """The floating-point operations of a program.

    Attributes:
        by_node: id of a graph -> id of a node -> its operations. An operator with bodies has those
            of its bodies: `torch.cond` the larger number of its branches for each operator.
        total: those of the program.
        left_out: why operators are not counted -> how many are not.
        unknown: id of a graph -> ids of the nodes that are left out, or whose bodies leave some
            out.
    """

    by_node: dict[str, dict[str, int]]
    total: int
    left_out: dict[str, int]
    unknown: dict[str, set[str]]


def count_flops(graphs: list[dict[str, Any]]) -> Count:
    """Count the operations of a program.

    Args:
        graphs: its own graph, then those of the bodies of its operators.
    """
    counting = _Counting(graphs)
    total = counting.of_graph(graphs[0]["id"]).total()
    return Count(counting.by_node, total, dict(counting.left_out), counting.unknown)


class _Counting:
    def __init__(self, graphs: list[dict[str, Any]]) -> None:
        self._graphs = {graph["id"]: graph for graph in graphs}
        self.by_node: dict[str, dict[str, int]] = {graph["id"]: {} for graph in graphs}
        self.left_out = Counter[str]()
        self.unknown: dict[str, set[str]] = {graph["id"]: set() for graph in graphs}
        self._counted: dict[str, Counter[str]] = {}  # graphs may be asked for more than once

    def of_graph(self, graph_id: str) -> Counter[str]:
        """Return the operations of a graph by the names of operators."""
        if graph_id in self._counted:
            return self._counted[graph_id]
        by_operator = self._counted[graph_id] = Counter[str]()
        by_node = self.by_node[graph_id]
        nodes = {node["id"]: node for node in self._graphs[graph_id]["nodes"]}
        for node in nodes.values():
            before = self.left_out.total()
            found = self._of_node(node, nodes)
            inside = (self.unknown[body] for body in node.get("subgraphIds", ()))
            if self.left_out.total() > before or any(inside):
                self.unknown[graph_id].add(node["id"])
            if found is not None:
                by_node[node["id"]] = found.total()
                by_operator.update(found)
        return by_operator

    def _of_node(
        self, node: dict[str, Any], nodes: dict[str, dict[str, Any]]
    ) -> Counter[str] | None:
        label = node["label"]
        if bodies := node.get("subgraphIds"):
            inside = [self.of_graph(body) for body in bodies]
            if label == "cond":
                most = Counter[str]()
                for each in inside:
                    most |= each
                return most
            if label in _ONCE:
                return sum(inside, Counter[str]())
            self.left_out[f"{label}: how often its body runs is not known"] += 1
            return None
        if label in _MADE_OF_PRODUCTS and node["id"].startswith("node "):
            self.left_out[f"{label}: there is no formula"] += 1
        if label not in _RULES or not node["id"].startswith("node "):
            return None
        number = _flops(node, nodes)
        if number is None:
            self.left_out[f"{label}: a size is a symbol"] += 1
            return None
        return Counter({label: number})


def _flops(node: dict[str, Any], nodes: dict[str, dict[str, Any]]) -> int | None:
    """Return the operations of a node; None: an operator without a formula, or a size is a symbol.

    Bodies do not count.
    """
    rule = _RULES.get(node["label"])
    if rule is None:
        return None
    given = given_to(node, nodes)
    shapes = {name: sizes_of(facts.get("shape", "")) for name, facts in given.items()}
    results = [facts_of(item) for item in node["outputsMetadata"][:1]]
    result = sizes_of(results[0].get("shape", "")) if results else None
    if facts_of(node).get("transposed") == "True":
        rule = _transposed
    try:
        return rule(shapes, result)  # type: ignore[arg-type]  # None is a TypeError here
    except (KeyError, IndexError, TypeError, ZeroDivisionError):
        return None


def is_product(label: str) -> bool:
    """Return whether an operator of a name consists of products that are added."""
    return label in _RULES or label in _MADE_OF_PRODUCTS


def _product(left: str) -> Callable[[_Shapes, _Sizes], int]:
    """Return the rule for a product of matrices: of each row of `left` with each column."""
    return lambda shapes, result: 2 * math.prod(result) * shapes[left][-1]


def _matmul(shapes: _Shapes, result: _Sizes) -> int:
    """Products with a vector are those of other operators, which torch does not count."""
    return 0 if len(shapes["other"]) == 1 else _product("self")(shapes, result)


def _convolution(shapes: _Shapes, result: _Sizes) -> int:
    return 2 * math.prod(result) * math.prod(shapes["weight"][1:])


def _transposed(shapes: _Shapes, _: _Sizes) -> int:
    """Each item of the input, of one channel, is multiplied with the weights of all channels."""
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

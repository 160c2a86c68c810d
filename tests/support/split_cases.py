"""Running torch's split and ours side by side."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.passes.split_module import split_module as torch_split

from fxpress.split_module import split_module
from tests.support.compare import assert_same_module
from tests.support.versions import PARITY

ASSIGNED = ("call_function", "call_method", "call_module")


def consecutive(graph: Graph, size: int) -> dict[Node, int]:
    """Blocks of `size` nodes, in graph order."""
    nodes = [n for n in graph.nodes if n.op in ASSIGNED]
    return {n: i // size for i, n in enumerate(nodes)}


def levels(graph: Graph, parts: int, seed: int) -> dict[Node, int]:
    """Return a random partition without cycles: no node is in a lower partition than its inputs."""
    rng = random.Random(seed)
    result: dict[Node, int] = {}
    for node in graph.nodes:
        if node.op in ASSIGNED:
            least = max((result.get(i, 0) for i in node.all_input_nodes), default=0)
            result[node] = min(parts - 1, least + rng.choice((0, 0, 0, 0, 1, 2)))
    return result


def clean(graph: Graph) -> None:
    """Forget the marks of an earlier split."""
    for node in graph.nodes:
        node.__dict__.pop("_fx_partition", None)


def marks(graph: Graph) -> dict[str, Any]:
    name = "_fx_partition"
    return {n.name: n.__dict__[name] for n in graph.nodes if name in n.__dict__}


def outcome(split: Callable[[], GraphModule]) -> GraphModule | type[BaseException]:
    try:
        return split()
    except Exception as error:
        return type(error)


def assert_split_as_torch(
    module: GraphModule, callback: Callable[[Node], Any], *, code: bool = True, **options: Any
) -> GraphModule | None:
    """Assert that torch's and fxpress's splits are equal, or raise exceptions of one type.

    `code=False`: Python cannot compile the code of the graph, so torch splits with its lazy flag.
    With an older torch (`PARITY`), only fxpress splits, and the graphs are checked.
    """
    if not PARITY:
        alone = outcome(partial(split_module, module, None, callback, **options))
        if isinstance(alone, type):
            return None
        for child in (alone, *alone.children()):
            if isinstance(child, GraphModule):
                child.graph.lint()
        return alone
    maps: tuple[dict[str, str], dict[str, str]] = ({}, {})
    results, partitions = [], []
    for split, qualname_map in zip((torch_split, split_module), maps, strict=True):
        clean(module.graph)
        with _use_lazy_graph_module(split is torch_split and not code):
            results.append(outcome(partial(split, module, None, callback, qualname_map, **options)))
        partitions.append(marks(module.graph))
    theirs, ours = results
    if isinstance(theirs, type):
        assert ours is theirs, f"torch raised {theirs}, we {ours}"
        assert partitions[1] == {}
        assert maps[1] == {}
        return None
    assert isinstance(ours, GraphModule), f"we raised {ours}"
    assert partitions[0] == partitions[1]
    assert list(maps[0].items()) == list(maps[1].items())
    assert_same_module(ours, theirs, code=code)
    return ours

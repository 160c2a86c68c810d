"""Cut a graph between nodes that belong to different modules."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from torch.fx import GraphModule, Node

from fxpress._graphs.partition.callback import SplitCallback, operations

# Matches the root module at the start of a path: a local or global variable in Dynamo's notation
# (`L['self']`), or the name of strict export's wrapper. `_clean` removes this part.
_ROOT = re.compile(r"^(?:[LG]\[['\"][^'\"]*['\"]\]|_export_root)(?=[.\[]|$)")
# Dynamo's notations of a child: ._modules['0'], ['0'] and [0] all mean .0
_SUBSCRIPT = re.compile(r"(?:\._modules)?\[['\"]?([^\]'\"]+)['\"]?\]")
# The second call of the module layers.0 has the path layers.0@1.
_CALL_NUMBER = re.compile(r"@\d+(?=\.|$)")


def by_module(m: GraphModule, *, depth: int = 1, path: str | None = None) -> SplitCallback:
    """Return a callback that cuts a graph where the module changes. torch has no such function.

    `meta["nn_module_stack"]` has the paths of the modules in which a node was traced. The node's
    module is found in the outermost path with at least `depth` components ("layers.0" has two): its
    first `depth` components are the path of the module. If all paths are shorter, the module is the
    innermost one. If a `call_module` node has no stack, the module is the one that it calls.

    Each change of module, in graph order, starts a partition. A module that is called twice, with
    other nodes in between, has two partitions. Nodes without a stack (nodes that a pass inserted,
    and nodes of the root module in symbolic traces and Dynamo's graphs) join the partition of the
    previous node. At the start of the graph, they join the first node with a stack.

    Args:
        m: The graph to split, as it will be passed to `split_module`.
        depth: The number of path components that distinguish modules.
        path: A path ("model.layers"), or a pattern of `fnmatch` (`"model.layers.*"`,
            `"*.self_attn"`) in which `*` matches dots too. Modules at or below this path have
            separate partitions; a run of nodes of other modules is one partition. A node belongs
            to the outermost module that matches and has at least `depth` components.

    Returns:
        The callback for `split_module(m, None, callback)`.

    Raises:
        ValueError: If `depth` is less than 1.

    Example:
        >>> from fxpress import partition
        >>> partition.by_module(program.graph_module)
        <SplitCallback by_module(depth=1): 22 nodes in 2 partitions>
    """
    if depth < 1:
        raise ValueError(f"by_module: depth must be at least 1, got {depth}")
    modules: dict[tuple[str, ...], str | None] = {}
    ids: dict[Node, int] = {}
    current: str | None = None
    seen_module = False
    partition = 0
    for node in operations(m):
        scope = _scope(node)
        if scope:
            if scope not in modules:
                modules[scope] = _module(tuple(map(_clean, scope)), depth, path)
            partition += seen_module and modules[scope] != current
            current, seen_module = modules[scope], True
        ids[node] = partition
    chosen = "" if path is None else f", path={path!r}"
    return SplitCallback(ids, f"by_module(depth={depth}{chosen})")


def _scope(node: Node) -> tuple[str, ...]:
    """Return the paths of the modules in which `node` was traced, outermost first, or ()."""
    stack = node.meta.get("nn_module_stack")
    if stack:
        return tuple([entry[0] for entry in stack.values()])
    return (str(node.target),) if node.op == "call_module" else ()


def _clean(path: str) -> str:
    """Return `path` as `named_modules` writes it."""
    path = _ROOT.sub("", path, count=1)
    path = _SUBSCRIPT.sub(r".\1", path)
    return _CALL_NUMBER.sub("", path).strip(".")


def _module(scope: tuple[str, ...], depth: int, path: str | None) -> str | None:
    """Choose a node's module from the paths in `scope`; return None if none is inside `path`."""
    for module in scope:
        atoms = module.split(".") if module else []
        for length in range(depth, len(atoms) + 1):
            ancestor = ".".join(atoms[:length])
            if _is_inside(ancestor, path):
                return ancestor
    return scope[-1] if _is_inside(scope[-1], path) else None


def _is_inside(module: str, path: str | None) -> bool:
    return path is None or fnmatchcase(module, path) or fnmatchcase(module, f"{path}.*")

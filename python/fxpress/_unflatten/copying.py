"""Deep copies and pickles of unflattened modules.

Copies share what is immutable or only describes values: tree specs and the fake values in the meta
of nodes. Pickles hold operators and fake values in the form of torch's `GraphPickler`. What is
derived from graphs is left out of both.
"""

from __future__ import annotations

import copy
import copyreg
import threading
from typing import Any

import torch.fx

from fxpress import _torch_compat
from fxpress._torch_compat import TreeSpec

_pickling = threading.local()


def state_without(module: Any, *derived: str) -> dict[str, Any]:
    """The instance's state, minus attributes that are computed when they are needed."""
    return {name: value for name, value in module.__dict__.items() if name not in derived}


def deep_copy(module: Any, memo: dict[int, Any]) -> Any:
    """`copy.deepcopy(module, memo)`."""
    kind: Any = type(module)
    result = kind.__new__(kind)
    memo[id(module)] = result
    state = module.__getstate__()
    shared = [state.get("range_constraints"), *(v for v in state.values() if _is_spec(v))]
    for entry in state.get("module_call_graph", ()):
        if entry.signature is not None:
            shared += [entry.signature.in_spec, entry.signature.out_spec]
    for value in shared:
        memo[id(value)] = value
    result.__dict__.update({name: copy.deepcopy(value, memo) for name, value in state.items()})
    _complete(result)
    return result


def _complete(module: Any) -> None:
    """What follows from a module's state."""
    if "graph" in module.__dict__:
        module.graph.owning_module = module


def _is_spec(value: object) -> bool:
    return isinstance(value, TreeSpec)


def reduce(module: Any) -> tuple[Any, ...]:
    """What pickles a module: alone through `GraphPickler`, below another one as its part."""
    if not getattr(_pickling, "depth", 0):
        _pickling.depth = 1
        try:
            return _load, (_torch_compat.dump_graphs(module),)
        finally:
            _pickling.depth = 0
    state = module.__getstate__()
    if isinstance(state.get("graph"), torch.fx.Graph):
        state["graph"] = _torch_compat.graph_carrier(state["graph"])
    return copyreg.__newobj__, (type(module),), state  # type: ignore[attr-defined]


def restore(module: Any, state: dict[str, Any]) -> None:
    """`__setstate__`: takes graphs out of the modules that carried them through the pickle."""
    graph = state.get("graph")
    if isinstance(graph, torch.fx.GraphModule):
        state = {**state, "graph": graph.graph}
    module.__dict__.update(state)
    _complete(module)


def _load(data: bytes) -> Any:
    return _torch_compat.load_graphs(data)

"""Copies of unflattened modules.

Deep copies share what is immutable or only describes values: tree specs and the fake values in the
meta of nodes. What is derived from graphs is left out of copies and pickles.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from fxpress._torch.fx import TreeSpec


def state_without(module: Any, *derived: str) -> dict[str, Any]:
    """Return the instance's state without attributes that are computed when they are needed."""
    state = torch.nn.Module.__getstate__(module)
    return {name: value for name, value in state.items() if name not in derived}


def deep_copy(module: Any, memo: dict[int, Any]) -> Any:
    """Return `copy.deepcopy(module, memo)`."""
    kind: Any = type(module)
    result = kind.__new__(kind)
    memo[id(module)] = result
    state = module.__getstate__()
    shared = [
        state.get("range_constraints"),
        *(v for v in state.values() if isinstance(v, TreeSpec)),
    ]
    for entry in state.get("module_call_graph", ()):
        if entry.signature is not None:
            shared += [entry.signature.in_spec, entry.signature.out_spec]
    for value in shared:
        memo[id(value)] = value
    _set_dict(result, {name: copy.deepcopy(value, memo) for name, value in state.items()})
    _complete(result)
    return result


def _set_dict(module: Any, attributes: dict[str, Any]) -> None:
    """Give a new module its attributes, as a dict of its own, whose changes the engine can watch.

    Attributes that are set one by one may lie in the object, where CPython 3.13 does not tell.
    """
    object.__setattr__(module, "__dict__", attributes)


def _complete(module: Any) -> None:
    """Set the attributes that follow from a module's state."""
    if "graph" in module.__dict__:
        module.graph.owning_module = module


def shallow_copy(module: Any) -> Any:
    """Return `copy.copy(module)`, which shares the module's tables, tensors and graphs."""
    kind: Any = type(module)
    result = kind.__new__(kind)
    _set_dict(result, state_without(module, *module._derived))
    return result


def restore(module: Any, state: dict[str, Any]) -> None:
    """Set the state of a module, as `module.__setstate__(state)`."""
    _set_dict(module, {**module.__dict__, **state})
    _complete(module)

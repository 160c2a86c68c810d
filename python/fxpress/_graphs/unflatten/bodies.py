"""Copy bodies of higher-order operators: GraphModules to which the program's graph refers."""

from __future__ import annotations

import collections

import torch
import torch.fx

from fxpress._torch import deferred_code

_TABLES = (dict, collections.OrderedDict, set, list)


def _children(module: torch.nn.Module) -> list[torch.fx.GraphModule]:
    return [m for m in module._modules.values() if isinstance(m, torch.fx.GraphModule)]


def _shallow_copy(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a copy with its own dicts and `training`, but with the module's graph and tensors."""
    result: torch.fx.GraphModule = object.__new__(type(module))
    for name, value in module.__dict__.items():
        result.__dict__[name] = value.copy() if type(value) in _TABLES else value
    return result


def copy_with_separate_bodies(owner: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a shallow copy of `owner` with copies of its bodies, or `owner` if it has none."""
    if not _children(owner):
        return owner
    copies = {id(owner): _shallow_copy(owner)}
    pending = _children(owner)
    while pending:
        body = pending.pop()
        if id(body) in copies:
            continue
        # Generate the code first: the class, which the copy shares, can only do it for `body`.
        deferred_code.materialize(type(body))
        copies[id(body)] = _shallow_copy(body)
        pending += _children(body)
    for copy in copies.values():
        for name, child in copy._modules.items():
            copy._modules[name] = copies.get(id(child), child)
    return copies[id(owner)]

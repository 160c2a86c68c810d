"""Bodies of higher-order operators: GraphModules that the program's graph refers to by name."""

from __future__ import annotations

import collections

import torch
import torch.fx

from fxpress import _deferred_code

_TABLES = (dict, collections.OrderedDict, set, list)


def _children(module: torch.nn.Module) -> list[torch.fx.GraphModule]:
    return [m for m in module._modules.values() if isinstance(m, torch.fx.GraphModule)]


def _shallow_copy(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Shares class, and with it the code, graph and tensors; tables and mode are its own."""
    result: torch.fx.GraphModule = object.__new__(type(module))
    for name, value in module.__dict__.items():
        result.__dict__[name] = value.copy() if type(value) in _TABLES else value
    return result


def owner_with_bodies_of_its_own(owner: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A module with the attributes of `owner`, whose bodies have modes and tables of their own.

    A mode, hook or child that is set on a body of the result must not reach the program. What is
    one body in the program is one here.
    """
    if not _children(owner):
        return owner
    copies = {id(owner): _shallow_copy(owner)}
    open_ = _children(owner)
    while open_:
        body = open_.pop()
        if id(body) in copies:
            continue
        # A class is filled in from the module that it is made for.
        _deferred_code.materialize(type(body))
        copies[id(body)] = _shallow_copy(body)
        open_ += _children(body)
    for copy in copies.values():
        for name, child in copy._modules.items():
            copy._modules[name] = copies.get(id(child), child)
    return copies[id(owner)]

"""Count modules that may be alike, by what is cheap to ask: a call of a single one is traced."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import torch

_TENSORS = (torch.nn.Parameter, torch.Tensor)  # others may run code of the user
_NOTHING: dict[str, Any] = {}


class Census:
    """The kinds of modules that were met so far.

    The kind of a module is its class, the sizes of its tensors and the kinds of the modules in it:
    less than what makes two calls alike, and found once for a module, not at each level above it.
    """

    def __init__(self) -> None:
        self._kinds: dict[int, int] = {}  # the id of a module -> the number of its kind
        self._numbers: dict[Any, int] = {}  # a kind -> its number
        self._counts: collections.Counter[int] = collections.Counter()

    def is_single(self, module: torch.nn.Module) -> bool:
        """Return whether no other module that was met is of its kind.

        One that is in no module that was met before may have its like elsewhere. Only the first of
        these is a single one: the first call of a trace can seldom be repeated.
        """
        is_first = not self._kinds
        if id(module) not in self._kinds:
            self._add(module)
            if not is_first:
                return False
        return self._counts[self._kinds[id(module)]] == 1

    def _add(self, root: torch.nn.Module) -> None:
        found: dict[int, torch.nn.Module] = {}
        pending = [root]
        while pending:
            module = pending.pop()
            if id(module) not in found and id(module) not in self._kinds:
                found[id(module)] = module
                pending.extend(_children(module))
        for key, module in reversed(found.items()):  # what is inside first
            kind = (
                type(module),
                tuple(_sizes(module)),
                tuple(self._kinds.get(id(child), -1) for child in _children(module)),
            )
            number = self._kinds[key] = self._numbers.setdefault(kind, len(self._numbers))
            self._counts[number] += 1


def _children(module: torch.nn.Module) -> Iterator[torch.nn.Module]:
    table = vars(module).get("_modules", _NOTHING)
    return (child for child in table.values() if isinstance(child, torch.nn.Module))


def _sizes(module: torch.nn.Module) -> Iterator[Any]:
    own = vars(module)
    for name in ("_parameters", "_buffers"):
        for value in own.get(name, _NOTHING).values():
            yield value.shape if type(value) in _TENSORS else type(value)

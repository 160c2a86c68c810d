"""Put the state of a stage in the order of the original model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from fxpress._distributed.pipeline.calls import plain


def restore_order(module: nn.Module, names: Iterable[str]) -> None:
    """Sort modules, parameters and buffers as the model has them, which also optimizers count on.

    A stage has them in the order of their first use. Modules without state keep theirs, behind the
    others.
    """
    places: dict[str, int] = {}
    for number, name in enumerate(names):
        path = ""
        for part in name.split("."):
            path = f"{path}.{part}" if path else part
            places.setdefault(path, number)
    for prefix, each in module.named_modules(remove_duplicate=False):
        for held in (each._modules, each._parameters, each._buffers):
            _sort(held, f"{plain(prefix)}." if prefix else "", places)


def _sort(held: dict[str, Any], prefix: str, places: dict[str, int]) -> None:
    order = sorted(held, key=lambda name: places.get(prefix + plain(name), len(places)))
    for name in order:
        held[name] = held.pop(name)

"""Programs whose inputs and outputs are objects of classes registered with pytree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import export
from torch.utils import _pytree as pytree

from fxpress import decompose
from tests.support.decompose_cases import assert_decomposed_as_torch


class Pair:
    def __init__(self, parts: Any) -> None:
        self.parts = list(parts)


class Layer(nn.Module):
    def __init__(self, *, takes: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.takes = takes

    def forward(self, x: Any) -> Any:
        if self.takes:
            return self.linear(x.parts[0]) + x.parts[1]
        return Pair([self.linear(x), x + 1])


def doubled(parts: list[Any]) -> list[Any]:
    return [torch.cat([p, p]) if isinstance(p, Tensor) else p for p in parts]


def halved(parts: list[Any]) -> list[Any]:
    return [p[: len(p) // 2] if isinstance(p, Tensor) else p for p in parts]


def same(parts: list[Any]) -> list[Any]:
    return parts


def swapped(parts: list[Any]) -> list[Any]:
    return parts[::-1]


@contextmanager
def registered(flatten: Callable[..., Any], create: Callable[..., Any]) -> Iterator[None]:
    """Let torch flatten and create pairs by functions of their parts."""
    pytree.register_pytree_node(
        Pair,
        lambda pair: (flatten(pair.parts), None),
        lambda parts, _: Pair(create(list(parts))),
        serialized_type_name="tests.Pair",
        flatten_with_keys_fn=lambda pair: (
            [(pytree.SequenceKey(i), part) for i, part in enumerate(flatten(pair.parts))],
            None,
        ),
    )
    try:
        yield
    finally:
        pytree._deregister_pytree_node(Pair)


@pytest.mark.parametrize("takes", [False, True], ids=["output", "input"])
@pytest.mark.parametrize(
    ("flatten", "create", "reason"),
    [
        (same, same, None),
        (same, doubled, "calls an operator"),
        (doubled, halved, "calls an operator"),
        (same, swapped, "other values"),
    ],
    ids=["plain", "computes", "inverse", "order"],
)
def test_d37_classes_that_compute(flatten: Any, create: Any, reason: Any, takes: bool) -> None:
    """torch creates and flattens the objects in its trace, so that their calls become nodes."""
    with registered(flatten, create):
        x = torch.randn(3, 3)
        program = export(Layer(takes=takes), (Pair([x, x]) if takes else x,))
        assert_decomposed_as_torch(program)
        said = decompose.report()
        assert (reason in said.reason) if reason else said.instantiated == said.calls

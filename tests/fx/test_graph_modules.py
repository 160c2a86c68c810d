"""GraphModules of modules that the package makes, with the attributes that torch gives them."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from fxpress import _native


class Child(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.constant = torch.ones(2)  # neither a buffer nor a parameter
        self.register_buffer("buffer", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) + self.constant


class Root(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Child(), Child()
        self.one.inner = Child()
        self.constant = torch.ones(2)


TARGETS = ("one", "one.constant", "one.inner.constant", "one.inner", "two.buffer", "constant")


@pytest.mark.parametrize("targets", [*itertools.permutations(TARGETS, 3), TARGETS, TARGETS[::-1]])
def test_attributes_of_a_modules_graph(targets: tuple[str, ...]) -> None:
    root = Root()
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    for target in targets:
        is_module = isinstance(attribute_at(root, target), nn.Module)
        x = graph.call_module(target, (x,)) if is_module else graph.get_attr(target)
    graph.output(x)
    theirs = torch.fx.GraphModule(root, graph)
    ours = _native.make_graph_module(root, graph)
    for listed in ("named_modules", "named_buffers", "named_parameters"):
        found, expected = (list(getattr(module, listed)()) for module in (ours, theirs))
        assert [name for name, _ in found] == [name for name, _ in expected]
    for target in targets:
        assert attribute_at(ours, target) is attribute_at(root, target)


def attribute_at(module: nn.Module, target: str) -> object:
    value: object = module
    for part in target.split("."):
        value = getattr(value, part)
    return value

"""Module stacks of the rarer kinds: ordered dicts, and classes in the place of their names."""

from __future__ import annotations

import copy
from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.export import unflatten as torch_unflatten

from fxpress.unflatten import unflatten
from tests.support.unflatten_compare import assert_same_unflattened


class Leaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).sin()  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Leaf(), Leaf()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x)) + self.first(x)  # type: ignore[no-any-return]


def program() -> ExportedProgram:
    torch.manual_seed(0)
    return export(Model(), (torch.ones(1, 2),), strict=False)


def test_stacks_with_an_order_of_their_own() -> None:
    made = program()
    for node in made.graph.nodes:
        stack = node.meta.get("nn_module_stack") or {}
        ordered = OrderedDict(reversed(stack.items()))
        for key in stack:
            ordered.move_to_end(key)
        assert list(ordered) == list(stack)
        if stack:
            node.meta["nn_module_stack"] = ordered
    assert_same_unflattened(unflatten(made), torch_unflatten(copy.deepcopy(made)))


def test_classes_in_the_place_of_their_names() -> None:
    made = program()
    classes = {f"{c.__module__}.{c.__qualname__}": c for c in (Model, Leaf, nn.Linear)}
    for node in made.graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if stack:
            node.meta["nn_module_stack"] = {
                key: (path, classes[kind]) for key, (path, kind) in stack.items()
            }
    assert_same_unflattened(unflatten(made), torch_unflatten(copy.deepcopy(made)))

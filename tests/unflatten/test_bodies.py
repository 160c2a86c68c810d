"""Bodies of higher-order operators: edits of the result's bodies do not reach the program's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from fxpress.unflatten import unflatten
from tests.support.unflatten_cases import exported
from tests.support.unflatten_compare import assert_runs_as_eager, assert_untouched, snapshot


class Branches(nn.Module):
    """A condition in a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        def positive(x: Tensor) -> Tensor:
            return torch.cond(x.mean() > 1, lambda x: self.linear(x), lambda x: x * 2, (x,))

        return torch.cond(x.sum() > 0, positive, lambda x: x - 1, (x,))


def bodies(module: nn.Module) -> dict[str, torch.fx.GraphModule]:
    return {
        name: child
        for name, child in module.named_modules(remove_duplicate=False)
        if isinstance(child, torch.fx.GraphModule) and name
    }


@pytest.fixture
def program() -> ExportedProgram:
    torch.manual_seed(0)
    return exported(nn.Sequential(Branches(), Branches()), torch.randn(2, 3))


def add_hook(module: Any) -> None:
    for body in bodies(module).values():
        body.register_forward_hook(lambda *_: None)


def add_child(module: Any) -> None:
    for body in bodies(module).values():
        body.add_module("extra", nn.ReLU())
        body.register_buffer("shift", torch.ones(2))
        body.meta["mine"] = True


@pytest.mark.parametrize(
    "change",
    [lambda m: m.eval(), add_hook, add_child],
    ids=["eval", "hook", "child"],
)
def test_the_program_does_not_change(
    program: ExportedProgram, change: Callable[[nn.Module], Any]
) -> None:
    def state() -> list[Any]:
        return [
            (
                name,
                b.training,
                list(b._forward_hooks),
                list(b._modules),
                list(b._buffers),
                [*b.meta],
            )
            for name, b in bodies(program.graph_module).items()
        ]

    before, everything = state(), snapshot(program)
    assert len(before) == 8
    module = unflatten(program)
    change(module)
    assert state() == before
    assert_untouched(program, everything)
    if module.training is False:
        assert not any(b.training for b in bodies(module).values())


def test_bodies_share_graph_and_code_with_the_program(program: ExportedProgram) -> None:
    theirs = {id(b.graph): b for b in bodies(program.graph_module).values()}
    module = unflatten(program)
    for body in bodies(module).values():
        other = theirs[id(body.graph)]
        assert body is not other
        assert type(body) is type(other)
        assert body.code == other.code
    eager = nn.Sequential(Branches(), Branches())
    eager.load_state_dict(module.state_dict())
    for x in (torch.randn(2, 3).abs() + 2, torch.randn(2, 3).abs(), -torch.randn(2, 3).abs()):
        assert_runs_as_eager(module, eager, (x,))


def test_a_body_under_two_names_is_one(program: ExportedProgram) -> None:
    graph_module = program.graph_module
    graph_module._modules["true_graph_1"] = graph_module._modules["true_graph_0"]
    module = unflatten(program)
    assert module.get_submodule("1.true_graph_1") is module.get_submodule("0.true_graph_0")

"""unflatten against torch, and against eager, on higher-order operators in submodules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import export
from torch.nn import Module

from tests.support.exported import skipped_unless_exported
from tests.support.sampled import turns
from tests.support.unflatten_cases import assert_unflattens_as_torch

pytestmark = pytest.mark.slow("each case is done by torch too")


class Branches(Module):
    """cond in a submodule that is called twice, its branches closing over parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(
            x.sum() > 0,
            lambda x: self.linear(x) + self.shift,
            lambda x: self.linear(x).sin(),
            (x,),
        )


class Loop(Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def more(i: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return i < 3

        def step(i: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, x * self.weight + 1

        return torch.while_loop(more, step, (torch.zeros((), dtype=torch.int64), x))[1]


class Mapped(Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def body(row: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return row.sin() * weight

        return torch._higher_order_ops.map(body, x, self.weight)


class Scanned(Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def add(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return carry + row, (carry * row).clone()

        return torch._higher_order_ops.scan(add, torch.zeros_like(x[0]), x, dim=0)


class Checkpointed(Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.utils.checkpoint.checkpoint(
            lambda x: self.linear(x).relu(), x, use_reentrant=False
        )


class Modes(Module):
    """Grad mode and autocast become operators with separate bodies."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = self.linear(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = self.linear(x)
        return y + z.float()


class Host(Module):
    def __init__(self, inner: Module, *, twice: bool) -> None:
        super().__init__()
        self.inner = inner
        self.twice = twice

    def forward(self, x: torch.Tensor) -> Any:
        if self.twice:
            return self.inner(self.inner(x) - 1)
        return self.inner(x.cos())


@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
@pytest.mark.parametrize(
    ("kind", "twice"),
    [*turns([Branches, Loop, Mapped, Checkpointed, Modes], [False, True]), (Scanned, False)],
)
def test_bodies_in_submodules(kind: type[Module], twice: bool, strict: bool) -> None:
    torch.manual_seed(0)
    model = Host(kind(), twice=twice)
    x = torch.randn(3, 4)
    with skipped_unless_exported():
        program = export(model, (x,), strict=strict)
    try:
        program.module()(x)
    except Exception:
        pytest.skip("torch does not run what it has exported")
    # torch calls a module twice where its nodes stand in two groups around a body (U-35).
    assert_unflattens_as_torch(program, model, (x,), tolerant=kind is Modes)

"""Calls that begin and end vmap have an effect, though nothing uses their results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch.nn import Linear, Module

from fxpress.unflatten import unflatten
from tests.support.exported import export

X = torch.randn(4, 3)


class Mapped(Module):
    """A child is called within vmap, and another vmap is inside of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return torch.vmap(lambda row: torch.vmap(torch.sin)(self.linear(row)))(x) + 1


class Scanned(Module):
    def forward(self, x: Any) -> Any:
        return associative_scan(torch.add, x, 0, combine_mode="generic")


@pytest.mark.parametrize(("model", "strict"), [(Mapped, False), (Scanned, False), (Scanned, True)])
def test_u115_calls_that_begin_and_end_vmap_stay(model: type[Module], strict: bool) -> None:
    made = model()
    program = export(made, (X,), strict=strict)
    for call in (program.module(), unflatten(program)):
        torch.testing.assert_close(call(X), made(X))

"""Programs of which one part writes or has effects; clean calls in them are instantiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import export

from fxpress import decompose
from tests.support.decompose_cases import Attention, Block, assert_decomposed_as_torch
from tests.support.generated import examples
from tests.support.memory import check_no_object_leaks


class Mixed(nn.Module):
    """Blocks that are alike, with writes, views, batch norm in training and branches between."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.attention = nn.ModuleList([Attention(), Attention()])
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("count", torch.zeros(8))

    def forward(self, x: Tensor) -> Any:
        y = self.blocks[0](x)
        y[:, 0].mul_(2)  # the block's result is written to
        with torch.fx.traceback.annotate({"part": "second"}):
            y = self.blocks[1](y)
        self.count.add_(y.sum((0, 1)))
        z = torch.cond(y.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (y,))
        z = self.attention[1](self.attention[0](z))
        z = self.blocks[2](z + self.count)
        view = z.transpose(0, 1)
        view.add_(1)
        return self.norm(z.reshape(-1, 8)), x.add_(1), self.blocks[1](z)


@pytest.mark.slow("torch decomposes the program")
@pytest.mark.parametrize("table", ["default", "empty"])
def test_what_is_clean_is_instantiated(table: str) -> None:
    torch.manual_seed(0)
    program = export(Mixed(), (torch.randn(2, 4, 8),), strict=False)
    assert_decomposed_as_torch(program, table, instantiated=False)
    report = decompose.report()
    assert report.instantiated >= 10
    assert f"{report.instantiated} of {report.calls}" in str(report)


_STEPS: dict[str, Callable[[list[Tensor], int], Any]] = {
    "sin": lambda v, i: v[i].sin(),
    "add": lambda v, i: v[i] + v[-1].sum(),
    "product": lambda v, i: v[i].reshape(4, 4) @ v[-1].reshape(4, 4),
    "softmax": lambda v, i: v[i].softmax(-1),
    "view": lambda v, i: v[i].view(-1)[:16].view(4, 4),
    "transposed": lambda v, i: v[i].reshape(4, 4).t(),
    "write": lambda v, i: v[i].add_(1),
    "write_part": lambda v, i: v[i].view(-1)[1:3].mul_(2).sum() + v[i],
    "copy": lambda v, i: v[i].copy_(v[-1].reshape(v[i].shape)),
    "clone": lambda v, i: v[i].clone(),
    "unsqueeze": lambda v, i: v[i].unsqueeze_(0),
}


class Steps(nn.Module):
    def __init__(self, steps: list[tuple[str, int]]) -> None:
        super().__init__()
        self.steps = steps
        self.register_buffer("state", torch.ones(4, 4))

    def forward(self, x: Tensor) -> Any:
        values = [x, self.state * 1, x.sin()]
        for name, index in self.steps:
            values.append(_STEPS[name](values, index % len(values)))
        return values[3:]


@pytest.mark.deep("generated programs that torch decomposes")
@examples(12)
@given(
    st.lists(
        st.tuples(st.sampled_from([*_STEPS, "sin", "product"]), st.integers(0, 9)),
        min_size=4,
        max_size=14,
    )
)
def test_generated_programs(steps: list[tuple[str, int]]) -> None:
    try:
        program = export(Steps(steps), (torch.randn(4, 4),), strict=False)
    except Exception:  # torch cannot make a view, or export what changes an input's sizes
        reject()
    assert_decomposed_as_torch(program, "default")


@pytest.mark.deep("decomposes the programs eight times")
def test_no_objects_leak() -> None:
    torch.manual_seed(0)
    program = export(Mixed(), (torch.randn(2, 4, 8),), strict=False)
    check_no_object_leaks(lambda: decompose.run_decompositions(program) and None)

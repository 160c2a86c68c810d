"""Calls whose results are written to: torch's may be views, and the instantiated ones are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import export
from torch.nn import functional

import fxpress
from fxpress import decompose
from fxpress._graphs.decompose.memo import Memo
from tests.support.decompose_cases import TABLES, assert_fresh_as_torch


class Writes(nn.Module):
    def __init__(self, function: Callable[[Writes, Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def residual(m: Writes, x: Tensor) -> Tensor:
    for layer in (m.first, m.second, m.first):
        x = x + layer(x).relu_()
    return x


def scaled_key(m: Writes, x: Tensor) -> Tensor:
    scores = m.first(x) @ m.second(x).mul_(0.5).transpose(1, 2)
    return scores @ m.first(x)


def written_by_an_alias(m: Writes, x: Tensor) -> Any:
    first, second, third = m.first(x), m.first(x), m.first(x)
    first.view(-1)[:2].fill_(3)
    second.transpose(0, 1).mul_(2)
    return first, second, third


def other_sizes(m: Writes, x: Tensor) -> Any:
    first, second, third = m.first(x), m.first(x), m.first(x)
    first.unsqueeze_(0)
    second.transpose_(0, 1).add_(1)
    return first, second, third


def row_of_attention(m: Writes, x: Tensor) -> Any:
    query = x.unsqueeze(0)
    first = functional.scaled_dot_product_attention(query, query, query)
    second = functional.scaled_dot_product_attention(query, query, query)
    second[:, 0].index_put_((torch.tensor([0]),), torch.zeros(1))
    return first, second


def twice(call: Callable[[Writes, Tensor], Tensor]) -> Callable[[Writes, Tensor], Any]:
    return lambda m, x: (call(m, x), call(m, x).add_(1), call(m, x).relu_())


CASES: dict[str, Callable[[Writes, Tensor], Any]] = {
    "residual": residual,
    "written_by_an_alias": written_by_an_alias,
    "scaled_key": scaled_key,
    "other_sizes": other_sizes,
    "row_of_attention": row_of_attention,
    "linear": twice(lambda m, x: m.first(x)),
    "matmul": twice(lambda m, x: x @ m.weight),
    "einsum": twice(lambda m, x: torch.einsum("bij,jk->bik", x, m.weight)),
    "max_pool1d": twice(lambda m, x: functional.max_pool1d(x, 2)),
    "instance_norm": twice(lambda m, x: functional.instance_norm(x)),
    "kron": twice(lambda m, x: torch.kron(x[0], x[0])),
    "reshape": twice(lambda m, x: x.transpose(0, 1).reshape(-1)),
    "copy": lambda m, x: (m.first(x).copy_(x), m.first(x).zero_(), m.first(x)),
    "nested": lambda m, x: m.first(m.first(m.first(x).relu()).relu_()).relu_(),
}


def assert_as_torch(case: str, table: str) -> None:
    torch.manual_seed(0)
    model = Writes(CASES[case])
    inputs = (torch.randn(2, 3, 4),)
    assert_fresh_as_torch(lambda: export(model, inputs, strict=False), table)


@pytest.mark.parametrize("case", ["residual", "written_by_an_alias"])
def test_a_result_that_is_a_view_is_written_to(case: str) -> None:
    assert_as_torch(case, "default")


@pytest.mark.slow("torch decomposes the programs")
@pytest.mark.parametrize("case", CASES)
def test_writes(case: str) -> None:
    assert_as_torch(case, "default")


@pytest.mark.slow("torch decomposes the programs")
@pytest.mark.parametrize("table", [table for table in TABLES if table != "default"])
def test_tables(table: str) -> None:
    assert_as_torch("scaled_key", table)


@pytest.mark.slow("torch decomposes the program")
def test_checks_compare_a_trace_with_instantiated_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Writes(lambda m, x: residual(m, m.second(m.second(x) + m.second(x))))
    program = export(model, (torch.randn(2, 3, 4),), strict=False)
    with decompose.check_templates():
        decompose.run_decompositions(program)
    assert decompose.report().reason
    assert decompose.report().instantiated
    monkeypatch.setattr(Memo, "_may_repeat", lambda self, node: True)
    with decompose.check_templates(), pytest.raises(fxpress.InternalError, match="nodes"):
        decompose.run_decompositions(program)

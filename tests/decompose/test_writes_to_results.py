"""Writes to results of calls are decomposed by templates if no view of the result is used later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, export

from tests.support.decompose_cases import assert_decomposed_as_torch, assert_fresh_as_torch


class _Model(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(3, 4))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def _index_put(m: Any, x: Any) -> Any:
    y = torch.zeros_like(x)
    y.index_put_((torch.tensor([0, 2]),), x[:2])
    return y + 1


def _experts(m: Any, x: Any) -> Any:
    weights, chosen = x.softmax(-1).topk(2)
    weights /= weights.sum(-1, keepdim=True)
    return weights, chosen, weights @ x[:2]


def _several(m: Any, x: Any) -> Any:
    y = x * 2
    z = x * 3
    y.add_(z)
    z.mul_(y)
    y.relu_().sub_(1)
    return y, z, y + z


def _repeated(m: Any, x: Any) -> Any:
    for _ in range(4):
        y = x + 1
        y.mul_(x)
        x = y.sigmoid_() + x
    return x


def _view_before(m: Any, x: Any) -> Any:
    y = x + 1
    flat = y.view(-1).sum()
    y.add_(1)
    return y, flat


def _view_after(m: Any, x: Any) -> Any:
    y = x + 1
    flat = y.view(-1)
    y.add_(1)
    return y, flat * 2


def _view_is_output(m: Any, x: Any) -> Any:
    y = x + 1
    flat = y.t()
    y.add_(1)
    return flat


def _write_to_view(m: Any, x: Any) -> Any:
    y = x + 1
    y[0].add_(1)
    return y


def _detached(m: Any, x: Any) -> Any:
    y = x + 1
    other = y.detach()
    y.add_(1)
    return y + other


def _kept(m: Any, x: Any) -> Any:
    y = x.clone()
    z = y.add_(1)
    w = z.mul_(2)
    return y, z, w, y - w


def _transposed(m: Any, x: Any) -> Any:
    y = x.t() + 1
    y.add_(torch.ones(4, 3))
    return y


def _view_of_kept_name(m: Any, x: Any) -> Any:
    y = x * 2
    y.mul_(x)
    z = y.reshape(-1)
    return (x + 1).view(-1) + z, y[1] + 1


def _late_view(m: Any, x: Any) -> Any:
    y = x.softmax(-1)
    y /= y.sum(-1, keepdim=True)
    z = y.reshape(-1)
    w = x.view(-1).sin()
    return w.cos() + z.repeat(1), x.view(2, 6)


def _given(m: Any, x: Any) -> Any:
    y = x.contiguous()
    y.add_(1)
    return y * 2


def _gradients(m: Any, x: Any) -> Any:
    y = x + 1
    y.add_(m.linear.weight[:3])
    return y * 2


CASES: dict[str, tuple[bool | None, Callable[..., Any]]] = {  # name -> (templates suffice, forward)
    "add": (True, lambda m, x: (x + 1).add_(x)),
    "itself": (True, lambda m, x: [y := x + 1, y.add_(y)]),
    "part of itself": (False, lambda m, x: [y := x + 1, y.add_(y[0])]),
    "index_put": (True, _index_put),
    "experts": (True, _experts),
    "several": (True, _several),
    "repeated": (True, _repeated),
    "kept": (True, _kept),
    "unused": (True, lambda m, x: [(x + 1).add_(1), x * 2][1]),
    "fill": (True, lambda m, x: torch.empty_like(x).fill_(2.0) + torch.ones_like(x).zero_()),
    "copy": (None, lambda m, x: torch.empty(2, 3, 4).copy_(x) + 1),
    "conversion": (None, lambda m, x: torch.zeros(3, 4, dtype=torch.float16).add_(x) + 1),
    "integers": (None, lambda m, x: (x > 0).int().mul_(3)),
    "masked": (None, lambda m, x: (x + 1).masked_fill_(x > 0, 0.0).clamp_(min=-1)),
    "scattered": (None, lambda m, x: (x + 1).scatter_(1, (x > 0).long(), 2.0)),
    "dropout": (None, lambda m, x: F.dropout(x + 1, 0.5, True, True)),
    "view before": (True, _view_before),
    "view after": (False, _view_after),
    "view is output": (False, _view_is_output),
    "write to view": (False, _write_to_view),
    "detached": (False, _detached),
    "transposed": (None, _transposed),
    "view of the result": (False, lambda m, x: (x + 1).add_(1).view(-1) * 2),
    "unused view": (False, lambda m, x: [y := (x + 1).add_(1), y.t(), y * 2][2]),
    "view in an operator": (None, lambda m, x: m.linear((x[None] + 1).add_(1))),
    "view of a kept name": (False, _view_of_kept_name),
    "late view": (False, _late_view),
    "linear": (None, lambda m, x: m.linear(x).add_(1)),
    "linear, three dimensions": (None, lambda m, x: m.linear(x[None]).add_(1)),
    "input": (False, lambda m, x: x.add_(1)),
    "input by another name": (False, _given),
    "buffer": (False, lambda m, x: m.seen.add_(x) + 1),
    "requires gradients": (None, _gradients),
    "shape": (None, lambda m, x: (x + 1).unsqueeze_(0)),
    "items": (None, lambda m, x: [p := (x + 1).chunk(2, 1), p[0].add_(1), p[1] * 2]),
}


@pytest.mark.parametrize("table", ["default", "empty"])
@pytest.mark.parametrize("name", CASES)
def test_same_program(name: str, table: str) -> None:
    instantiated, function = CASES[name]
    program = export(_Model(function), (torch.randn(3, 4),))
    assert_decomposed_as_torch(program, table, instantiated=instantiated)
    assert_decomposed_as_torch(program, table, instantiated=instantiated)  # from kept templates


@pytest.mark.parametrize("name", ["add", "experts", "several", "view after", "conversion"])
def test_symbolic_sizes(name: str) -> None:
    model = _Model(CASES[name][1])
    rows = 4 if name == "experts" else 3
    sizes = (None,) if name == "conversion" else ({0: Dim("rows", min=2, max=64)},)
    assert_fresh_as_torch(lambda: export(model, (torch.randn(rows, 4),), dynamic_shapes=sizes))

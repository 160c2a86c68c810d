"""Strict exports instantiate repeated calls of a captured graph; the programs equal torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxpress
from fxpress._graphs.trace import captured
from tests.support.programs import assert_exports_as_torch


class _Repeats(nn.Module):
    """Calls a function three times, the second and third time with tensors as in the first."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(4, 4)) for _ in range(3)])
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> list[Any]:
        pairs = zip(self.weights, self.scales, strict=True)
        return [self.function(x, weight, scale) for weight, scale in pairs]


def _write_to_view_of_result(x: Any, w: Any, s: Any) -> Any:
    y = x.clone()
    y.view(-1)[2:5].mul_(s.sum())  # y requires gradients from here on
    return y, y.t().contiguous() @ w


def _without_gradients(x: Any, w: Any, s: Any) -> Any:
    with torch.no_grad():
        y = F.linear(x, w)
    return y, F.linear(x, w), y.requires_grad


def _in_autocast(x: Any, w: Any, s: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x, w), F.linear(x, w)


def _in_place(x: Any, w: Any, s: Any) -> Any:
    y = torch.empty_like(x)
    y.copy_(x)
    return F.relu(F.linear(y, w), inplace=True).add_(s), F.dropout(y, 0.5, True, True)


def _written_by_method(x: Any, w: Any, s: Any) -> Any:
    y = torch.zeros(4, 4)
    view = y.view(-1)
    y.__iadd__(w)
    return view + 1


def _written_by_norm(x: Any, w: Any, s: Any) -> Any:
    mean = torch.zeros(4)
    view = mean.view(2, 2)
    return F.instance_norm(w[None], mean, torch.ones(4)), view + 1


def _written_by_embedding(x: Any, w: Any, s: Any) -> Any:
    view = w.t()
    return F.embedding(torch.tensor([0, 1]), w, max_norm=1.0), view + 1


def _other_storage(x: Any, w: Any, s: Any) -> Any:
    y = torch.zeros(2, 2)
    y.set_(w.detach())
    return y + 1


FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {  # name -> (repeated calls, function)
    "linear": (2, lambda x, w, s: F.linear(x, w, s)),
    "layer norm": (2, lambda x, w, s: F.layer_norm(x, (4,), s)),
    "views": (6, lambda x, w, s: w.view(2, 2, 4).transpose(1, 2).reshape(2, 8)),
    "items": (4, lambda x, w, s: [a + s for a in w.chunk(2)]),
    "named tuple": (2, lambda x, w, s: (w @ x.t()).max(0)),
    "constants": (5, lambda x, w, s: (w * 0.0, w * -0.0, w * 1, w * True, w * 2.5)),
    "new tensors": (2, lambda x, w, s: torch.min(w, torch.full_like(w, 2.0))),
    "no operator": (0, lambda x, w, s: w.contiguous()),
    "same tensor twice": (4, lambda x, w, s: (w @ w, w @ x.t())),
    "attention": (
        2,
        lambda x, w, s: F.scaled_dot_product_attention(w[None], w[None], w[None], is_causal=True),
    ),
    "literals": (2, lambda x, w, s: (s + torch.tensor([0.0, 1.0, 2.0, 3.0]), w[torch.tensor([0])])),
    "sparse": (4, lambda x, w, s: w.detach().to_sparse() @ w + w),
    "cell": (2, lambda x, w, s: torch.lstm_cell(x, (x, x), w.repeat(4, 1), w.repeat(4, 1))),
    "write to a view": (0, _write_to_view_of_result),
    "write by a method": (2, _written_by_method),
    "write by a norm": (2, _written_by_norm),
    "write by an embedding": (2, _written_by_embedding),
    "other storage": (2, _other_storage),
    "in place": (2, _in_place),
    "without gradients": (2, _without_gradients),
    "autocast": (2, _in_autocast),
    "random numbers": (2, lambda x, w, s: F.dropout(w, 0.5, training=True)),
}


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The recipes of the calls that were instantiated."""
    recipes: list[Any] = []
    repeat = captured.Captured._repeat

    def counted(self: Any, recipe: Any, *given: Any) -> Any:
        recipes.append(recipe)
        return repeat(self, recipe, *given)

    monkeypatch.setattr(captured.Captured, "_repeat", counted)
    return recipes


@pytest.mark.parametrize("name", FUNCTIONS)
def test_same_program(name: str, repeated: list[Any]) -> None:
    least, function = FUNCTIONS[name]
    assert_exports_as_torch(_Repeats(function), (torch.randn(3, 4),), strict=True)
    assert len(repeated) >= least
    assert bool(repeated) == bool(least)


SYMBOLIC: dict[str, tuple[int, Callable[..., Any]]] = {  # as FUNCTIONS; x has symbolic sizes
    "linear": (2, lambda x, w, s: F.linear(x, w, s)),
    "computed sizes": (6, lambda x, w, s: (x @ w).view(x.shape[0], 2, -1).transpose(1, 2) + 1),
    "flat": (4, lambda x, w, s: (x @ w).reshape(-1) * 2),
    "new tensors": (2, lambda x, w, s: torch.zeros_like(x) + s),
    "items": (2, lambda x, w, s: [a.sum() for a in (x @ w).chunk(2, 1)]),
    "row": (4, lambda x, w, s: F.linear(x[0], w) + 1),
    "grown": (4, lambda x, w, s: torch.cat([x @ w, x]) + 1),
    "square": (2, lambda x, w, s: x @ w @ x.t()),
    "size as number": (2, lambda x, w, s: (x @ w) * x.shape[0]),
    "range": (0, lambda x, w, s: torch.arange(x.shape[0])),
    "expand": (2, lambda x, w, s: s.expand(x.shape[0], x.shape[1], 4)),
}


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_sizes(name: str, repeated: list[Any]) -> None:
    least, function = SYMBOLIC[name]
    sizes = ({0: torch.export.Dim.AUTO},)
    example = (torch.randn(3, 4),)
    model = _Repeats(function)
    assert_exports_as_torch(model, example, strict=True, dynamic_shapes=sizes)
    assert len(repeated) >= least
    assert bool(repeated) == bool(least)


def test_kernels_of_users_run_each_time(repeated: list[Any]) -> None:
    calls = []

    def own(x: torch.Tensor, weight: torch.Tensor, bias: Any = None) -> torch.Tensor:
        calls.append(x)
        return x @ weight.t()

    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl("linear", own, "CompositeImplicitAutograd")
        with fxpress.installed():
            model = _Repeats(lambda x, w, s: F.linear(x, w))
            torch.export.export(model, (torch.randn(3, 4),), strict=True)
    finally:
        library._destroy()
    assert not repeated


def test_operators_of_users_that_write(repeated: list[Any]) -> None:
    def function(x: Any, w: Any, s: Any) -> Any:
        y = torch.zeros(4, 4)
        view = y.view(-1)
        torch.ops.fxpress_tests.scale(y, w)
        return view + 1

    with torch.library._scoped_library("fxpress_tests", "DEF") as library:
        library.define("scale(Tensor(a!) x, Tensor y) -> Tensor(a!)")
        library.impl("scale", lambda x, y: x.mul_(y), "CompositeImplicitAutograd")
        assert_exports_as_torch(_Repeats(function), (torch.randn(3, 4),), strict=True, runs=False)
    assert repeated


def test_non_strict_exports_do_not_repeat_calls(repeated: list[Any]) -> None:
    with fxpress.installed():
        torch.export.export(_Repeats(FUNCTIONS["linear"][1]), (torch.randn(3, 4),), strict=False)
    assert not repeated


def test_calls_that_write_between_equal_calls(repeated: list[Any]) -> None:
    """A write changes what a later, equal call returns."""

    def function(x: Any, w: Any, s: Any) -> Any:
        y = x.clone()
        before = y + 1
        y.t_()
        y.requires_grad_()
        return before, y + 1

    model = _Repeats(lambda x, w, s: F.linear(x, w) + 1)
    assert_exports_as_torch(model, (torch.randn(3, 4),), strict=True)
    assert_exports_as_torch(_Repeats(function), (torch.randn(4, 4),), strict=True)
    assert repeated


def test_gradients_in_the_graph(repeated: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """torch differentiates only what torch has run."""
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        pytest.skip("this torch does not capture gradients")
    monkeypatch.setattr(torch._dynamo.config, "trace_autograd_ops", True)
    model = _Repeats(lambda x, w, s: torch.autograd.grad(F.linear(x, w).sin().sum(), w)[0] + 1)
    assert_exports_as_torch(model, (torch.randn(3, 4),), strict=True)
    assert not repeated

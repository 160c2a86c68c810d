"""`preserve_module_call_signature`: which modules, how deep, how often called, how shared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.export import export

from fxpress.unflatten import InterpreterModuleDispatcher
from tests.support.unflatten_cases import assert_unflattens_as_torch
from tests.support.unflatten_compare import assert_runs_as_eager
from tests.support.unflatten_models import (
    Counter,
    Deep,
    Nest,
    Repeated,
    RootState,
    Shared,
    Special,
    Unused,
)

pytestmark = pytest.mark.slow("each case is done by torch too")

STRICT = pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])


def inputs(count: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(3, 4, generator=generator) for _ in range(count))


def unflattened(
    build: Callable[[], torch.nn.Module],
    preserved: tuple[str, ...],
    *,
    count: int = 1,
    strict: bool = False,
    **options: Any,
) -> Any:
    torch.manual_seed(0)
    model = build()
    args = inputs(count)
    program = export(
        copy.deepcopy(model), args, strict=strict, preserve_module_call_signature=preserved
    )
    return assert_unflattens_as_torch(program, model, args, **options).ours


@STRICT
@pytest.mark.parametrize(
    "preserved",
    [
        ("first",),
        ("second",),
        ("norm",),
        ("first.leaf",),
        ("first.linear", "second.leaf"),
        ("first", "first.leaf"),
        ("first", "second"),
        ("first", "first.leaf", "first.linear", "second", "second.leaf", "norm"),
    ],
    ids="+".join,
)
def test_nested(preserved: tuple[str, ...], strict: bool) -> None:
    ours = unflattened(Nest, preserved, count=2, strict=strict, gradients=True)
    eager = Nest()
    eager.load_state_dict(ours.state_dict())
    for name in preserved:
        parent, _, last = name.rpartition(".")
        setattr(ours.get_submodule(parent), last, eager.get_submodule(name))
    assert_runs_as_eager(ours, eager, inputs(2))


@STRICT
@pytest.mark.parametrize("between", [True, False])
def test_repeated(between: bool, strict: bool) -> None:
    ours = unflattened(
        lambda: Repeated(torch.nn.Linear(4, 4), between=between), ("inner",), strict=strict
    )
    assert isinstance(ours.inner, InterpreterModuleDispatcher)


@STRICT
def test_repeated_with_a_graph_of_its_own_for_each_call(strict: bool) -> None:
    ours = unflattened(Special, ("inner",), strict=strict, gradients=True)
    assert isinstance(ours.inner, InterpreterModuleDispatcher)
    assert len(ours.inner.call_modules()) == 3


@STRICT
def test_repeated_without_preserving(strict: bool) -> None:
    unflattened(Special, (), strict=strict, gradients=True)


def test_repeated_and_replaced() -> None:
    """A preserved module may be replaced by the eager one, constants of the calls included."""
    ours = unflattened(Special, ("inner",))
    model = Special()
    ours.inner = model.inner
    assert_runs_as_eager(ours, model, inputs(1))


@pytest.mark.parametrize("preserved", [("inner",), ()], ids=["preserved", "plain"])
def test_repeated_with_a_buffer_that_is_written(preserved: tuple[str, ...]) -> None:
    """PR #137999: every call reads what the call before has written."""
    ours = unflattened(lambda: Repeated(Counter()), preserved)
    eager = Repeated(Counter())
    eager.load_state_dict({"inner.count": torch.tensor(float(ours.inner.count))})
    assert_runs_as_eager(ours, eager, inputs(1), calls=3)


@pytest.mark.parametrize(
    "preserved",
    [
        ("block",),
        ("block.inner",),
        ("block.inner.0",),
        ("block", "block.inner"),
        ("block", "block.inner.0", "head"),
        ("block", "block.inner", "block.inner.0", "block.inner.1", "head"),
    ],
    ids="+".join,
)
@STRICT
def test_repeated_in_repeated(preserved: tuple[str, ...], strict: bool) -> None:
    unflattened(Deep, preserved, strict=strict, gradients=True)


@STRICT
@pytest.mark.parametrize("preserved", [("a",), ("c",), ("a", "c"), ("a", "b", "c")], ids="+".join)
def test_shared(preserved: tuple[str, ...], strict: bool) -> None:
    unflattened(Shared, preserved, strict=strict, gradients=True)


@STRICT
@pytest.mark.parametrize("preserved", [("used",), ()], ids=["preserved", "plain"])
def test_unused(preserved: tuple[str, ...], strict: bool) -> None:
    unflattened(Unused, preserved, count=2, strict=strict, gradients=True)


@STRICT
@pytest.mark.parametrize(
    "preserved", [("layers.0",), ("layers.0", "layers.2"), ("layers.1.linear",)], ids="+".join
)
def test_state_of_the_root_as_an_argument(preserved: tuple[str, ...], strict: bool) -> None:
    unflattened(RootState, preserved, strict=strict, gradients=True)


def test_unused_inputs_after_dead_code_elimination() -> None:
    class Inner(torch.nn.Module):
        def forward(
            self, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return x + a, b

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            a, b = torch.topk(y, 4)
            return self.inner(x, a, b)[0]

    model, args = Model(), inputs(2)
    program = export(model, args, strict=False, preserve_module_call_signature=("inner",))
    program.graph.eliminate_dead_code()
    assert_unflattens_as_torch(program, model, args)


@pytest.mark.parametrize("name", ["first", "second", "norm"])
def test_each_direct_child_of_a_program_with_decompositions(name: str) -> None:
    model, args = Nest(), inputs(2)
    program = export(
        model, args, strict=False, preserve_module_call_signature=(name,)
    ).run_decompositions()
    assert_unflattens_as_torch(program, model, args, gradients=False)

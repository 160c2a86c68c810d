"""Programs that are refused before most of their calls are traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from fxpress import decompose
from fxpress._graphs.decompose import plan
from fxpress._graphs.decompose.record import Recorder
from tests.support.decompose_cases import assert_decomposed_as_torch

pytestmark = pytest.mark.slow("decompositions by torch and by us")

COUNT = 30


class Distinct(nn.Module):
    """Many calls of two operators with different shapes, then another operation."""

    def __init__(self, last: Callable[[nn.Module, Tensor], object]) -> None:
        super().__init__()
        self.last = last
        self.register_buffer("count", torch.zeros(4))
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Any:
        made = [(x[:i] * 2).softmax(-1) for i in range(2, COUNT)]
        return made, self.last(self, x)


# What follows, and how many calls may be traced before the program is refused.
LAST: dict[str, tuple[Callable[[Any, Tensor], object], int]] = {
    "a write to a buffer": (lambda self, x: self.count.add_(1), 1),
    "a write to a view": (lambda self, x: (x + 1).view(-1).mul_(2), 2),
    "a size of data": (lambda self, x: x.nonzero(), 0),
    "a branch": (lambda self, x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), 0),
    # By its schema, batch norm writes nothing.
    "statistics": (
        lambda self, x: nn.functional.batch_norm(
            x, self.norm.running_mean, self.norm.running_var, training=True
        ),
        plan._MANY + 6,
    ),
}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operators whose calls are traced from here on, without templates of before."""
    found = []
    record = Recorder.record

    def noted(self: Recorder, *args: Any) -> Any:
        found.append(args[0].target)
        return record(self, *args)

    monkeypatch.setattr(Recorder, "record", noted)
    decompose.forget_templates()
    return found


@pytest.mark.parametrize("name", LAST)
def test_few_calls_are_traced(name: str, recorded: list[Any]) -> None:
    last, most = LAST[name]
    program = export(Distinct(last), (torch.randn(COUNT, 4),))
    assert_decomposed_as_torch(program, instantiated=False)
    assert len(recorded) <= most, recorded


@pytest.mark.parametrize("name", ["a write to a view", "a size of data", "a branch"])
def test_few_calls_are_traced_with_symbols(name: str, recorded: list[Any]) -> None:
    last, most = LAST[name]
    shapes = {"x": {1: Dim("width")}}
    for _ in range(2):  # the first is traced for its names
        program = export(Distinct(last), (torch.randn(COUNT, 4),), dynamic_shapes=shapes)
        decompose.run_decompositions(program)
    assert decompose.report().reason
    assert len(recorded) <= most, recorded


@pytest.mark.parametrize("table", ["default", "empty"])
def test_an_operator_that_writes_nothing_is_instantiated(table: str) -> None:
    """In-place dropout of p=0 writes nothing, although its schema declares a write."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(inplace=True), nn.Linear(4, 4)).eval()
    program = export(model, (torch.randn(2, 4),))
    decompose.forget_templates()
    assert_decomposed_as_torch(program, table, instantiated=True)


def test_what_was_traced_ahead_is_counted_once() -> None:
    program = export(Distinct(lambda self, x: x.sin().cos().exp()), (torch.randn(COUNT, 4),))
    decompose.forget_templates()
    assert_decomposed_as_torch(program, instantiated=True)
    report = decompose.report()
    assert report.kept == 0
    assert report.traced == 3 * (COUNT - 2) + 3
    decompose.run_decompositions(program)
    assert (decompose.report().traced, decompose.report().kept) == (0, report.traced)

"""Programs that are traced in full: writes, effects, symbols, higher-order operators."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch.export import ExportedProgram, export, exported_program
from torch.export.experimental import _export_forward_backward

from fxpress import decompose
from tests.support.decompose_cases import MODELS, assert_decomposed_as_torch
from tests.support.decomposed import assert_same_program
from tests.support.sampled import turns

pytestmark = pytest.mark.slow("each case is done by torch too")


class Buffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        y = x + self.count
        y[0].mul_(2)
        return y


class Inputs(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x.t().add_(1)
        return x.view(-1) + y.sum()


class Views(nn.Module):
    def forward(self, x: Tensor) -> Any:
        y = x * 2
        part = y[1:].t()
        part.add_(1)
        y.unsqueeze_(0)
        return y, part


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda y: y.sin() + 1, lambda y: y.cos() @ y, (x,))


class Data(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.nonzero() * 2


class Constants(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tensor([1.0, 2.0, 3.0, 4.0]) * torch.ones(4)


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.linear(x)
        return y + self.linear(x)


X = (4, 4)
PROGRAMS: dict[str, Callable[[], ExportedProgram]] = {
    "buffer": lambda: export(Buffer(), (torch.randn(X),)),
    "inputs": lambda: export(Inputs(), (torch.randn(X), torch.randn(X))),
    "views": lambda: export(Views(), (torch.randn(X),)),
    "batch_norm": lambda: export(Normed().train(), (torch.randn(X),)),
    "branches": lambda: export(Branches(), (torch.randn(X),)),
    "data": lambda: export(Data(), (torch.randn(X),)),
    "constants": lambda: export(Constants(), (torch.randn(X),)),
    "no_grad": lambda: export(NoGrad(), (torch.randn(X),)),
    "int": lambda: export(_Scaled(), (torch.randn(X), 3)),
    "static": lambda: export(MODELS["attention"]()[0], (torch.randn(2, 4, 8),), strict=False),
    "written_result": lambda: export(_Cell(), (torch.randn(4), (torch.randn(4), torch.randn(4)))),
    "view_of_parameter": lambda: export(_Parameter(), (torch.randn(X),)),
}


class _Cell(nn.Module):
    """The decomposition of the cell writes to its results, of which views are made later."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 4)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> Any:
        return self.cell(x, state)


class _Scaled(nn.Module):
    def forward(self, x: Tensor, n: int) -> Tensor:
        return (x == n) * n


class _Parameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))

    def forward(self, x: Tensor) -> Any:
        return x + 1, self.weight.t(), self.weight


@pytest.mark.parametrize(("name", "table"), turns([*PROGRAMS], ["default", "empty"]))
def test_as_torch(name: str, table: str) -> None:
    assert_decomposed_as_torch(PROGRAMS[name](), table)


@pytest.mark.parametrize("name", ["buffer", "inputs", "views", "batch_norm", "branches", "data"])
def test_reports_why(name: str) -> None:
    program = PROGRAMS[name]()
    decompose.run_decompositions(program)
    report = decompose.report()
    assert report.reason
    assert report.reason in str(report)


def test_a_function_of_the_user_is_called_as_often_as_by_torch() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.sin() + 1).sin()

    program = export(Two(), (torch.randn(X),))
    calls = [0]

    def sine(x: Tensor) -> Tensor:
        calls[0] += 1
        return x.cos() * calls[0]

    theirs = program.run_decompositions({torch.ops.aten.sin.default: sine})
    count, calls[0] = calls[0], 0
    ours = decompose.run_decompositions(program, {torch.ops.aten.sin.default: sine})
    assert calls[0] == count
    assert_same_program(ours, theirs)


def test_a_composite_that_the_user_decomposes() -> None:
    class Linear(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(self.linear(x))

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return (x @ weight.t()) + bias

    program = export(Linear(), (torch.randn(X),))
    table = {torch.ops.aten.linear.default: linear}
    theirs = program.run_decompositions(table)
    assert_same_program(decompose.run_decompositions(program, table), theirs)
    assert "user's" in decompose.report().reason


def test_an_exception_of_the_user_passes_through() -> None:
    program = export(_Scaled(), (torch.randn(X), 3))

    def fails(*args: Any) -> Tensor:
        raise ZeroDivisionError("as asked")

    with pytest.raises(ZeroDivisionError, match="as asked"):
        decompose.run_decompositions(program, {torch.ops.aten.mul.Tensor: fails})


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return (self.linear(x) * self.shift).softmax(-1).sum()


def plain(program: ExportedProgram) -> str:
    """The text of a program, without the numbers of generated code."""
    return re.sub(r"<eval_with_key>\.\d+", "", str(program))


def test_joint_graphs() -> None:
    def program() -> ExportedProgram:
        torch.manual_seed(0)
        return export(Loss(), (torch.randn(X),))

    theirs = _export_forward_backward(program())
    options = {
        "cia_to_decomp": {},
        "python_decomp_table": core_aten_decompositions(),
        "decompose_custom_triton_ops": False,
    }
    with_loss = [
        make(program(), joint_loss_index=0, **options)
        for make in (
            decompose._decompose_exported_program,
            exported_program._decompose_exported_program,
        )
    ]
    assert plain(with_loss[0]) == plain(with_loss[1])
    assert with_loss[0].graph_signature == with_loss[1].graph_signature
    again = decompose.run_decompositions(theirs)
    assert decompose.report().reason == "the program is a joint graph"
    assert plain(again) == plain(theirs.run_decompositions())


def test_modes_of_the_user() -> None:
    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    model, inputs = MODELS["names"]()
    program = export(model, inputs)
    theirs = program.run_decompositions()
    with Mode():
        ours = decompose.run_decompositions(program)
    assert "mode" in decompose.report().reason
    assert str(ours) == str(theirs)

"""Programs with inputs that are no tensors: numbers, texts, None; each has the value it was
exported with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from tests.support.decompose_cases import (
    TABLES,
    assert_decomposed_as_torch,
    assert_fresh_as_torch,
    reloaded,
)
from tests.support.sampled import turns

pytestmark = pytest.mark.slow("each case is done by torch too")


class Plain(nn.Module):
    """Calls with the names of the comparisons that torch traces."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, number: int, flag: bool, rest: dict[str, Any]) -> Any:
        x = self.linear(x).eq(0) * number
        if flag:
            x = (x + rest["scale"]).eq(1)
        return x.ne(0), number, flag, rest


RESTS: list[dict[str, Any]] = [
    {"scale": 2.5, "text": "a", "pair": (4, None)},
    {"scale": 7, "text": None, "pair": (True, 2**40)},
    {"scale": float("inf"), "text": "", "pair": (1, 0)},
]


def exported(number: int, flag: bool, rest: dict[str, Any], **options: Any) -> ExportedProgram:
    torch.manual_seed(0)
    return export(Plain(), (torch.randn(2, 8), number, flag, rest), **options)


@pytest.mark.parametrize(("number", "rest"), turns([-7, -1, 0, 1, 2, 3], range(len(RESTS))))
def test_values(number: int, rest: int) -> None:
    strict = number == 1
    program = exported(number, number % 2 == 1, RESTS[rest], strict=strict)
    assert_decomposed_as_torch(program, instantiated=True)


@pytest.mark.parametrize("table", TABLES)
def test_tables(table: str) -> None:
    once = assert_decomposed_as_torch(exported(3, True, RESTS[0]), table, instantiated=True)
    assert_decomposed_as_torch(once, table, instantiated=True)


def test_from_a_file() -> None:
    program = exported(3, True, {"scale": 2, "text": None, "pair": (4, 1)})
    assert_decomposed_as_torch(reloaded(program), instantiated=True)


def test_with_symbols() -> None:
    shapes = ({0: Dim.DYNAMIC}, None, None, {"scale": None, "text": None, "pair": (None, None)})
    assert_fresh_as_torch(lambda: exported(3, True, RESTS[0], dynamic_shapes=shapes))


@pytest.mark.parametrize("number", [0, 3])
def test_an_input_that_a_pass_gave_a_user(number: int) -> None:
    program = exported(number, False, RESTS[0])
    given = next(node for node in program.graph.nodes if node.name == "number")
    (product,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
    product.update_arg(1, given)
    program.graph_module.recompile()
    assert_decomposed_as_torch(program)

"""Programs that torch exports and cannot save: functions on sizes, and tensors made in bodies."""

from __future__ import annotations

import io
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import fxpress
from fxpress import archive
from fxpress.decompose import run_decompositions
from tests.support.exported import export

Body = Callable[[torch.Tensor], Any]


class Model(torch.nn.Module):
    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("lifted_tensor_0", torch.ones(3))  # a name that a constant would get

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x + self.lifted_tensor_0)


def cond(x: torch.Tensor) -> Any:
    return torch.cond(
        x.sum() > 0, lambda x: x * torch.tensor([2.0]), lambda x: x + torch.tensor(1.0), (x,)
    )


def nested(x: torch.Tensor) -> Any:
    def inner(x: torch.Tensor) -> Any:
        return torch.cond(
            x[0] > 2, lambda x: x * torch.tensor(3), lambda x: x - torch.tensor(1.0), (x,)
        )

    return torch.cond(x.sum() > 0, inner, lambda x: x.clone(), (x * torch.tensor(2.0),))


def loop(x: torch.Tensor) -> Any:
    return while_loop(
        lambda i, x: i < torch.tensor(3),
        lambda i, x: (i + torch.tensor(1), x * torch.tensor(2.0)),
        (torch.tensor(0), x),
    )


CASES: dict[str, Body] = {
    "cond": cond,
    "nested": nested,
    "loop": loop,
    "map": lambda x: map_over(lambda y: y * torch.tensor([2.0]), x.reshape(3, 1)),
    "scan": lambda x: scan(
        lambda c, y: (c + y * torch.tensor(2.0), c * 1), torch.zeros(1), x.reshape(3, 1)
    ),
    "associative scan": lambda x: associative_scan(
        lambda a, b: a + b * torch.tensor(2.0), x, 0, combine_mode="generic"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_programs_with_tensors_in_bodies_can_be_saved_and_decomposed(name: str) -> None:
    model = Model(CASES[name])
    inputs = [torch.tensor(each) for each in ([1.0, 2.0, 3.0], [-5.0, 1.0, 0.0])]
    program = export(model, (inputs[0],))
    text = str(program)
    file = io.BytesIO()
    archive.save(program, file)
    made = [run_decompositions(program)]
    for load in (archive.load, torch.export.load):
        file.seek(0)
        made.append(load(file))
    for each in (program, *made):
        for x in inputs:
            torch.testing.assert_close(each.module()(x), model(x))
    assert str(program) == text
    assert fxpress.graph_hash(program) == fxpress.graph_hash(made[1])
    artifact = fxpress.serialize.serialize(program)
    torch.testing.assert_close(
        fxpress.serialize.deserialize(artifact).module()(inputs[0]), model(inputs[0])
    )


SIZES: dict[str, Callable[[Any], Any]] = {
    "ceil": lambda n: math.ceil(n / 3),
    "floor": lambda n: math.floor(n / 2) + 1,
    "round": lambda n: round(n / 2),
    "abs": lambda n: abs(n - 20),
    "operator.abs": lambda n: operator.abs(n - 20),
    "sum": lambda n: torch.sym_sum([n, n * 2, 3]),
}


@pytest.mark.parametrize("name", SIZES)
def test_functions_on_sizes(name: str) -> None:
    class Sized(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_ones(SIZES[name](x.shape[0]))

    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    program = export(Sized(), (torch.ones(7),), dynamic_shapes=dynamic)
    with pytest.raises(torch._export.serde.serialize.SerializeError, match="Failed serializing"):
        torch.export.save(program, io.BytesIO())
    file = io.BytesIO()
    archive.save(program, file)
    loaded = archive.load(file)
    found, expected = ([n.target for n in each.graph.nodes] for each in (loaded, program))
    assert found == expected
    for size in (7, 8, 31):
        x = torch.ones(size)
        assert loaded.module()(x).shape == Sized()(x).shape
    assert fxpress.graph_hash(loaded) == fxpress.graph_hash(program)

"""Tables of torch's own clients, and torch's collection of operators of higher order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.decomposition import select_decomp_table
from torch.export import default_decompositions
from torch.onnx._internal.exporter._decomp import create_onnx_friendly_decomposition_table
from torch.testing._internal.hop_db import hop_db

from tests.support.decompose_cases import MODELS, assert_decomposed_as_torch, program_of
from tests.support.exported import operator_samples, skipped_unless_exported
from tests.support.sampled import turns

pytestmark = pytest.mark.deep("each model is decomposed by torch with large tables")


def onnx() -> dict[Any, Any]:
    """torch.onnx's table, when ONNX has operators for some of these models'."""
    aten = torch.ops.aten
    return create_onnx_friendly_decomposition_table(
        {aten.linear.default, aten.layer_norm.default, aten.gelu.default, aten.conv2d.default}
    )


def edited() -> Any:
    """A table that its user took entries out of and put others into."""
    table = default_decompositions()
    table.pop(torch.ops.aten.layer_norm.default)
    table.update({torch.ops.aten.relu.default: torch._decomp.decompositions.relu})
    return table.copy()


CLIENTS: dict[str, Callable[[], Any]] = {
    "onnx": onnx,
    "inductor": select_decomp_table,
    "edited": edited,
}


@pytest.mark.parametrize(("model", "table"), turns([*MODELS], [*CLIENTS], 2))
def test_tables_of_clients(model: str, table: str) -> None:
    assert_decomposed_as_torch(program_of(model), CLIENTS[table])


class Twice(nn.Module):
    """Calls an operator of higher order twice, between other calls."""

    def __init__(self, op: Any, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.op = op
        self.rest = (args, kwargs)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> object:
        args, kwargs = self.rest
        first = self.op((x * self.scale).sin(), *args, **kwargs)
        return first, self.op((x * self.scale).sin(), *args, **kwargs)


_HIGHER = {info.name: info for info in hop_db}


@pytest.mark.parametrize(("name", "table"), turns(sorted(_HIGHER), ["default", "empty"]))
def test_hop_db(name: str, table: str) -> None:
    info = _HIGHER[name]
    with skipped_unless_exported():
        sample = next(operator_samples(info, torch.float32))
        model = Twice(info.op, sample.args, sample.kwargs)
        program = torch.export.export(model, (sample.input,), strict=False)
    # torch inserts an assertion into its program without recompiling it.
    stale = name == "while_loop_stack_output"
    assert_decomposed_as_torch(program, table, stale=stale)

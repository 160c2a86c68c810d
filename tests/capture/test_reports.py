"""Problems of captures that torch's users reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo import functional_export as torch_capture
from torch._dynamo.exc import Unsupported
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree

import fxpress
from fxpress import functional_export

BOTH = pytest.mark.parametrize("way", [functional_export, torch_capture], ids=["ours", "torch"])


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.visible = torch.randn(2, 16)

    def forward(self) -> torch.Tensor:
        from torch.nn.attention.flex_attention import create_mask

        visible = self.visible

        def mask_mod(batch: object, head: object, query: object, key: object) -> torch.Tensor:
            return visible[batch, query] > 0

        return create_mask(mask_mod, B=2, H=1, Q_LEN=16, KV_LEN=16, device="cpu").sum()


@pytest.mark.parametrize("free", [True, False])
def test_172893_what_fullgraph_compiles(free: bool) -> None:
    model = Masked()
    with torch._dynamo.config.patch(install_free_tensors=free):
        made = functional_export._dynamo_graph_capture_for_export(model)()
    assert torch.equal(made(), model())


class Misspelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.linear.w)


@BOTH
def test_165911_the_user_s_line_is_in_the_error(way: Any) -> None:
    with pytest.raises(Unsupported) as caught:
        way._dynamo_graph_capture_for_export(Misspelled())(torch.rand(4, 16))
    assert "nn.functional.linear(x, self.linear.w)" in str(caught.value)
    assert "no attribute 'w'" in str(caught.value)


class Box:
    def __init__(self, value: torch.Tensor, function: object) -> None:
        self.value, self.function = value, function


_pytree.register_pytree_node(
    Box, lambda box: ([box.value], box.function), lambda values, f: Box(values[0], f)
)


@BOTH
def test_172839_closures_in_the_structure_of_outputs(way: Any) -> None:
    """Dynamo itself refuses the function, before capture gets anything."""

    def call(x: torch.Tensor) -> Box:
        y = x * 2
        return Box(x + 1, lambda a: a + y)

    with pytest.raises(Unsupported, match="closure"):
        way._dynamo_graph_capture_for_export(call)(torch.rand(3))


class Inner(nn.Module):
    def forward(self, y: torch.Tensor, x: Any) -> torch.Tensor:
        return x.a.sum() + y


class Nested(nn.Module):
    def forward(self, y: torch.Tensor, x: Any) -> torch.Tensor:
        return x.b.a * y


class Scaled(nn.Module):
    def forward(self, y: torch.Tensor, x: Any) -> torch.Tensor:
        return x * x.scale + y


def two(first: float, second: float) -> TwoTensor:
    return TwoTensor(torch.full((2,), first), torch.full((2,), second))


def scaled(by: float) -> torch.Tensor:
    made = torch.ones(2)
    made.scale = torch.full((2,), by)
    return made


OF_INPUTS = {
    "subclass": (Inner(), two(1, 2), two(3, 4)),
    "nested": (Nested(), TwoTensor(two(1, 2), two(3, 4)), TwoTensor(two(5, 6), two(7, 8))),
    "plain": (Scaled(), scaled(2), scaled(3)),
}


@pytest.mark.parametrize("name", OF_INPUTS)
def test_172491_tensors_that_inputs_hold(name: str) -> None:
    """torch makes a constant of the fake tensor that it has traced with."""
    model, first, second = OF_INPUTS[name]
    made = functional_export._dynamo_graph_capture_for_export(model)(torch.ones(2), first)
    made.graph.lint()
    assert not list(made.named_buffers())
    assert torch.equal(made(torch.ones(2), second), model(torch.ones(2), second))
    assert "_captured" in torch_capture._dynamo_graph_capture_for_export(model)(
        torch.ones(2), first
    ).print_readable(print_output=False)


@pytest.mark.parametrize("name", ["subclass", "nested"])
def test_172491_strict_export(name: str) -> None:
    model, first, second = OF_INPUTS[name]
    with fxpress.installed():
        program = torch.export.export(model, (torch.ones(2), first), strict=True)
    assert torch.equal(program.module()(torch.ones(2), second), model(torch.ones(2), second))

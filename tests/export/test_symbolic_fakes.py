"""Repeated calls create the fake tensors with symbolic sizes that torch's cache creates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export

import fxpress
from tests.support.programs import assert_exports_as_torch


class Layers(nn.Module):
    """Repeated operators: views with offsets, in-place changes of metadata, gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 12)

    def forward(self, x: Tensor, mask: Tensor) -> Any:
        sizes = []
        for _ in range(4):
            q, k, v = self.linear(x).view(x.shape[0], x.shape[1], 2, 6).transpose(1, 2).split(2, -1)
            scores = (q @ k.transpose(-1, -2)).masked_fill(mask[:, None, None, :] == 0, -1.0)
            out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape[0], x.shape[1], 4)
            moved = (out * 2).unsqueeze_(0).transpose_(1, 2)  # changes a tensor of the cache
            x = x + out.contiguous() + moved.squeeze(0).transpose(0, 1)
            with torch.no_grad():
                x = x + x[:, 1:].sum(1, keepdim=True) + torch.zeros_like(x)
            sizes.append(x.numel() + x[1:].stride(0))
        return x, sizes[-1] + out.shape[1]


INPUTS = (torch.rand(3, 5, 4), torch.ones(3, 5, dtype=torch.long))
SHAPES: dict[str, Any] = {
    "auto": ({0: Dim.AUTO, 1: Dim.AUTO},) * 2,
    "named": ({0: Dim("b", min=2), 1: Dim("s", min=3, max=64)},) * 2,
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
def test_repeated_calls(shapes: Any) -> None:
    assert_exports_as_torch(Layers(), INPUTS, dynamic_shapes=shapes, runs=False)


def test_inference_mode() -> None:
    with torch.inference_mode():
        assert_exports_as_torch(
            Layers().requires_grad_(False), INPUTS, dynamic_shapes=SHAPES["auto"], runs=False
        )


class Unbacked(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            count = x.sum().int().item()
            torch._check(count >= 2)
            x = x[:, None] + x.new_ones(count).sum() * torch.zeros(count, 3).sum(0)[0]
            x = x[:, 0]
        return x


def test_data_dependent_sizes() -> None:
    assert_exports_as_torch(
        Unbacked(), (torch.ones(4),), dynamic_shapes=({0: Dim.AUTO},), runs=False
    )


class InferenceViews(nn.Module):
    """Creates tensors that have other dispatch keys than a copy: torch does not cache them."""

    def forward(self, x: Tensor) -> Tensor:
        doubled = x * 2
        with torch.inference_mode():
            views = doubled[1:], doubled.t(), doubled.sin()
        return sum(view.sum() for view in views) + torch.complex(x, x).conj().real.sum()


def statistics(model: nn.Module, inputs: tuple[Any, ...], shapes: Any) -> tuple[Any, ...]:
    FakeTensorMode.cache_clear()
    export(model, inputs, dynamic_shapes=shapes)
    info = FakeTensorMode.cache_info()
    return info.hits, info.misses, dict(info.bypasses)


@pytest.mark.parametrize(
    "exported",
    [
        (Layers(), INPUTS, SHAPES["auto"]),
        (InferenceViews(), (torch.ones(5, 6),), ({0: Dim.AUTO},)),
        (InferenceViews(), (torch.ones(5, 6),), None),
    ],
    ids=["layers", "symbolic views", "views"],
)
def test_the_cache_has_torchs_entries(exported: tuple[Any, ...]) -> None:
    statistics(*exported)  # some tables of torch are filled in the first export
    expected = statistics(*exported)
    with fxpress.installed():
        assert statistics(*exported) == expected
    assert isinstance(exported[0], Layers) or "dispatch_key_set mismatch" in expected[2]


def test_torch_checks_the_hits() -> None:
    checked = torch._dynamo.config.patch(fake_tensor_cache_crosscheck_enabled=True)
    with checked, fxpress.installed():
        export(Layers(), INPUTS, dynamic_shapes=SHAPES["auto"])

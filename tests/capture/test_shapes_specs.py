"""Capture with a `ParamsSpec` or a `ShapesSpec`, which newer releases of torch take."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import export

import fxpress
from fxpress._torch.versions import features
from tests.support.captured import assert_captures_as_torch
from tests.support.versions import needs

if features.shapes_specs:
    from torch.fx.experimental.dynamic_spec import (
        ParamsSpec,
        SeqSpec,
        ShapesSpec,
        ShapeVar,
        TensorSpec,
    )


class Summed(nn.Module):
    def forward(self, x: Any, pair: Any = None, *, scale: Any = None) -> Any:
        made = x.sum(0) + 1
        if pair is not None:
            made = made + pair[0].sum() + pair[1].sum()
        return made if scale is None else made * scale.sum()


def x() -> torch.Tensor:
    return torch.arange(8.0).reshape(4, 2)


def spec_of(name: str) -> Any:
    size = TensorSpec([ShapeVar("n"), None])
    return {
        "params": ParamsSpec({"x": size}),
        "shapes": ShapesSpec(ParamsSpec({"x": size})),
        "nested": ParamsSpec({"pair": SeqSpec([size, None])}),
        "keyword": ParamsSpec({"scale": size}),
        "static": ParamsSpec({"x": None}),
    }[name]


SPECS = ("params", "shapes", "nested", "keyword", "static")


@needs("shapes_specs")
@pytest.mark.parametrize("name", SPECS)
def test_captured_as_by_torch(name: str) -> None:
    given = ((x(), (x(), x())), {"scale": x()})
    assert_captures_as_torch(Summed(), *given, dynamic_shapes=spec_of(name))


@needs("shapes_specs")
@pytest.mark.parametrize("name", SPECS)
def test_exported_as_by_torch(name: str) -> None:
    given = {"args": (x(), (x(), x())), "kwargs": {"scale": x()}, "strict": True}
    theirs = export(Summed(), **given, dynamic_shapes=spec_of(name))
    with fxpress.installed():
        ours = export(Summed(), **given, dynamic_shapes=spec_of(name))
    assert str(ours.graph) == str(theirs.graph)
    assert str(ours.range_constraints) == str(theirs.range_constraints)
    assert bool(ours.range_constraints) == (name != "static")


@needs("shapes_specs")
def test_specs_that_do_not_fit() -> None:
    for spec in (ParamsSpec({"y": None}), ParamsSpec({"pair": TensorSpec([None])})):
        made = assert_captures_as_torch(Summed(), (x(), (x(), x())), dynamic_shapes=spec)
        assert made is None


@needs("shapes_specs")
def test_the_setting_ends_with_the_capture() -> None:
    assert_captures_as_torch(Summed(), (x(),), dynamic_shapes=spec_of("params"))
    assert torch._dynamo.config._dynamic_shapes_spec is None

"""Steps of captures that few programs take: graphs edited in between, and advice on sizes."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import nn
from torch._dynamo import functional_export as torch_capture
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from fxpress import functional_export

WAYS = (functional_export, torch_capture)


def test_names_that_are_clean() -> None:
    for way in WAYS:
        graph = torch.fx.Graph()
        graph.output(graph.get_attr("weight"))
        root = nn.Module()
        root.weight = nn.Parameter(torch.ones(2))
        made = torch.fx.GraphModule(root, graph)
        way.clean_export_root(made)
        assert made.graph.find_nodes(op="get_attr")[0].target == "weight"
        assert list(made._parameters) == ["weight"]


def test_calls_of_modules_without_names() -> None:
    for way in WAYS:
        graph = torch.fx.Graph()
        call = graph.call_module("sub")
        graph.output(call)
        made = torch.fx.GraphModule(nn.ModuleDict({"sub": nn.ReLU()}), graph)
        (call,) = made.graph.find_nodes(op="call_module")
        call.target = 3
        with pytest.raises(AssertionError, match="int"):
            way.clean_export_root(made)


def test_sizes_that_turn_out_to_be_numbers() -> None:
    """Also where Dynamo's guards hold."""
    for way in WAYS:
        constraints = mock.Mock()
        constraints.forced_specializations.return_value = {"s0": 3}
        constraints.prettify_results.return_value = "s0 is 3"
        environment = mock.Mock(dim_constraints=constraints, var_to_range={})
        with pytest.raises(ConstraintViolationError, match="s0 is 3"):
            way._suggest_or_raise_constraint_violation(
                nn.ReLU(),
                lambda a: a,
                mock.Mock(shape_env=environment),
                mock.Mock(),
                (torch.ones(3),),
                {},
                None,
            )

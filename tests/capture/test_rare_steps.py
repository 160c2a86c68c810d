"""Steps of captures that few programs take: graphs edited in between, and advice on sizes."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from torch import nn
from torch._dynamo import functional_export as torch_capture
from torch._dynamo import mutation_guard
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


def test_stacks_of_functions_that_nodes_share() -> None:
    made = []
    for way in WAYS:
        graph = torch.fx.Graph()
        root = nn.Module()
        root.L__self____export_root_w = nn.Parameter(torch.ones(2))
        w = graph.get_attr("L__self____export_root_w")
        entry = ("L['self']._export_root.call", nn.Linear)
        for _ in range(2):
            w = graph.call_function(torch.neg, (w,))
            w.meta["source_fn_stack"] = [entry, ("other", torch.neg), 3, (4, 5)]
        graph.output(w)
        module = torch.fx.GraphModule(root, graph)
        way.clean_nn_module_stack_and_source_fn(module)
        made.append([n.meta.get("source_fn_stack") for n in module.graph.nodes])
    assert made[0] == made[1]
    assert "export_root" not in str(made[0])


def test_modules_that_dynamo_guards_by_type() -> None:
    """Dynamo guards modules by type that were created since the last compilation began."""
    torch.compile(nn.Linear(4, 4), backend="eager")(torch.ones(4))  # now Dynamo records new modules
    original = mutation_guard.is_dynamic_nn_module
    model, found = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), []
    for way in WAYS:
        dynamic: list[bool] = []

        def record(module: nn.Module, is_export: bool, dynamic: list[bool] = dynamic) -> bool:
            dynamic.append(bool(original(module, is_export)))
            return dynamic[-1]

        with (
            torch._dynamo.config.patch(install_free_tensors_for_export=False),
            mock.patch.object(mutation_guard, "is_dynamic_nn_module", record),
        ):
            way._dynamo_graph_capture_for_export(model)(torch.ones(4))
        found.append(dynamic)
    assert found[0] == found[1]
    assert len(found[0]) > 0

"""Real models: programs with instantiated calls equal torch's traces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import export
from torch.export.unflatten import unflatten
from torch.fx.passes.split_module import split_module

from fxpress import decompose
from tests.support.decompose_cases import (
    MODELS,
    TABLES,
    assert_decomposed_as_torch,
    program_of,
    reloaded,
)
from tests.support.decomposed import assert_same_program
from tests.support.sampled import turns

pytestmark = pytest.mark.deep("each model is decomposed by torch")


@pytest.mark.parametrize(("model", "table"), turns([*MODELS], [*TABLES], 2))
def test_models(model: str, table: str) -> None:
    assert_decomposed_as_torch(program_of(model), table, instantiated=True)


@pytest.mark.parametrize("model", ["attention", "deep"])
def test_strict_export(model: str) -> None:
    assert_decomposed_as_torch(program_of(model, strict=True), instantiated=True)


@pytest.mark.parametrize("model", ["attention", "convolutions", "names"])
def test_from_files(model: str) -> None:
    program = reloaded(program_of(model))
    assert_decomposed_as_torch(program, instantiated=True)
    assert_decomposed_as_torch(program, "empty", instantiated=True)


@pytest.mark.parametrize("model", ["attention", "deep", "kinds"])
def test_twice(model: str) -> None:
    once = assert_decomposed_as_torch(program_of(model), "empty", instantiated=True)
    assert_decomposed_as_torch(once, instantiated=True)


@pytest.mark.parametrize("model", ["deep", "attention"])
def test_unflattened_and_split_afterwards(model: str) -> None:
    program = program_of(model)
    ours = decompose.run_decompositions(program)
    theirs = program.run_decompositions()
    inputs, _ = program.example_inputs

    def modules(tree: nn.Module) -> list[tuple[str, str]]:
        return [(n, str(getattr(m, "graph", ""))) for n, m in tree.named_modules()]

    assert modules(unflatten(ours)) == modules(unflatten(theirs))
    split = []
    for program in (ours, theirs):
        module = program.module()
        torch.testing.assert_close(module(*inputs), theirs.module()(*inputs))
        half = len(module.graph.nodes) // 2
        place = {node: int(i > half) for i, node in enumerate(module.graph.nodes)}
        split.append(split_module(module, module, place.__getitem__))
    assert modules(split[0]) == modules(split[1])


def test_preserved_signatures() -> None:
    model, inputs = MODELS["deep"]()
    program = export(
        model, inputs, strict=False, preserve_module_call_signature=("blocks.0", "blocks.1.norm")
    )
    assert_decomposed_as_torch(program, instantiated=True)


def test_parameters_that_were_tied_since() -> None:
    program = program_of("deep")
    state = program.state_dict
    state["blocks.1.linear.weight"] = state["blocks.0.linear.weight"]
    assert_decomposed_as_torch(program, instantiated=True)


def test_without_torch_fn() -> None:
    """Without torch_fn, torch counts calls of functions over the entire trace."""
    program = program_of("deep")
    for node in program.graph.nodes:
        node.meta.pop("torch_fn", None)
    assert_decomposed_as_torch(program, instantiated=True)


@pytest.mark.parametrize("item", ["nn_module_stack", "stack_trace", "from_node"])
def test_without_other_meta(item: str) -> None:
    program = assert_decomposed_as_torch(program_of("deep"), "empty")
    for node in program.graph.nodes:
        node.meta.pop(item, None)
    assert_decomposed_as_torch(program)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_kept_templates_hold_for_the_device(device: str) -> None:
    model, inputs = MODELS["attention"]()
    program = export(model.to(device), (inputs[0].to(device),), strict=False)
    for _ in range(2):
        assert_decomposed_as_torch(program, instantiated=True)


def _programs() -> list[Any]:
    return [program_of("deep"), program_of("attention"), program_of("deep", strict=True)]


def test_kept_templates_give_the_same() -> None:
    decompose.forget_templates()
    programs = _programs()
    first = [decompose.run_decompositions(program) for program in programs]
    for program, before in zip(programs, first, strict=True):
        again = decompose.run_decompositions(program)
        assert decompose.report().traced == 0
        assert_same_program(again, before)

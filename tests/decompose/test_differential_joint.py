"""Forward and backward in one graph: joint graphs of models, with the tables of torch's clients."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.lowering  # its table of decompositions looks there
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._inductor.decomposition import select_decomp_table
from torch.export import ExportedProgram, export, exported_program
from torch.export.experimental import _export_forward_backward
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from fxpress import decompose
from fxpress.export import module
from tests.support.decompose_cases import MODELS, TABLES
from tests.support.sampled import turns

pytestmark = pytest.mark.deep("each model is decomposed by torch with its backward")

GENERATED = re.compile(r"<eval_with_key>\.\d+")  # the file of a module's generated code
CLIENTS: dict[str, Callable[[], Any]] = {**TABLES, "inductor": select_decomp_table}


class Loss(nn.Module):
    """A model with one more parameter, and the sum of its outputs of floats."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, *args: Any) -> Tensor:
        leaves = tree_leaves(self.model(*args))
        floats = [x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
        return torch.stack([(x * self.scale).sin().sum() for x in floats]).sum()


def with_loss(name: str, *, training: bool) -> ExportedProgram:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return export(Loss(model).train(training), inputs)


def plain(program: ExportedProgram) -> str:
    """The text of a program, without the numbers of generated code."""
    return GENERATED.sub("", str(program))


def outcome(make: Callable[[], ExportedProgram]) -> object:
    """Return text, meta, signature and state of the result, or the type of the exception."""
    try:
        made = make()
    except Exception as error:
        return type(error)
    meta = [(list(n.meta), GENERATED.sub("", n.stack_trace or "")) for n in made.graph.nodes]
    return plain(made), meta, made.graph_signature, list(made.state_dict), list(made.constants)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("model", MODELS)
def test_joint_graphs(model: str, training: bool) -> None:
    def make(way: Any) -> object:
        return outcome(
            lambda: way(
                with_loss(model, training=training),
                cia_to_decomp={},
                python_decomp_table=core_aten_decompositions(),
                joint_loss_index=0,
                decompose_custom_triton_ops=False,
            )
        )

    theirs = make(exported_program._decompose_exported_program)
    # In these, not every parameter gets a gradient.
    assert isinstance(theirs, tuple) or model in ("kinds", "deep")
    assert make(decompose._decompose_exported_program) == theirs


@pytest.mark.parametrize(
    ("model", "table"),
    turns(["attention", "convolutions", "names"], ["default", "core", "inductor"]),
)
def test_joint_graphs_decomposed_again(model: str, table: str) -> None:
    program = with_loss(model, training=True)

    def make(way: Any) -> object:
        return outcome(lambda: way(_export_forward_backward(program), CLIENTS[table]()))

    assert make(decompose.run_decompositions) == make(ExportedProgram.run_decompositions)


@pytest.mark.parametrize(("model", "table"), turns([*MODELS], [*CLIENTS]))
def test_training_programs_decomposed_twice(model: str, table: str) -> None:
    program = with_loss(model, training=True)

    def make(way: Any) -> object:
        return outcome(lambda: way(way(program, {}), CLIENTS[table]()))

    assert make(decompose.run_decompositions) == make(ExportedProgram.run_decompositions)


@pytest.mark.parametrize("trace_joint", [False, True])
@pytest.mark.parametrize("model", ["attention", "convolutions", "names"])
def test_torch_traces_our_module_as_its_own(model: str, trace_joint: bool) -> None:
    program = with_loss(model, training=False)
    inputs = program.example_inputs
    modules = [
        module(decompose.run_decompositions(program)),
        program.run_decompositions().module(),
    ]

    def trace(runs: nn.Module) -> str:
        state = dict(runs.named_parameters()) | dict(runs.named_buffers())

        def call(*flat: Tensor) -> tuple[Tensor]:
            named = dict(zip(state, flat, strict=False))
            args, kwargs = tree_unflatten(flat[len(named) :], tree_structure(inputs))
            return (torch.func.functional_call(runs, named, args, kwargs),)

        state = {name: value.detach() for name, value in state.items()}
        for name, _ in runs.named_parameters():
            state[name].requires_grad_()
        flat = [*state.values(), *tree_leaves(inputs)]
        table = select_decomp_table()
        made = aot_export_joint_simple(call, flat, trace_joint=trace_joint, decompositions=table)
        return made.code

    ours, theirs = map(trace, modules)
    assert ours == theirs

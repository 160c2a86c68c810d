"""Programs that are not valid: torch's verifier has the last word, and the message."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export

from fxpress import _native
from fxpress._files.serde.checks import to_check
from fxpress.serialize import serialize
from tests.support.serialized import assert_serializes_as_torch


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scratch", torch.zeros(()), persistent=False)

    def forward(self, x: Tensor, k: int) -> tuple[Tensor, int]:
        self.count.add_(1)
        y = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return self.linear(y) * self.count + self.scratch + k, k


@functools.cache
def original() -> ExportedProgram:
    made = export(Model(), (torch.randn(3, 4), 2), strict=False)
    return made.run_decompositions()


def program() -> ExportedProgram:
    return copy.deepcopy(original())


def call(p: ExportedProgram, target: Any) -> torch.fx.Node:
    return next(n for n in p.graph.nodes if n.target is target)


def spec(p: ExportedProgram, kind: str) -> Any:
    specs = (*p.graph_signature.input_specs, *p.graph_signature.output_specs)
    return next(s for s in specs if s.kind.name == kind)


def out_of_order(p: ExportedProgram) -> None:
    output = p.graph.output_node()
    first = next(n for n in p.graph.nodes if n.op == "call_function")
    output.prev.append(first)


def foreign_node(p: ExportedProgram) -> None:
    other = torch.fx.Graph().placeholder("other")
    other.meta["val"] = torch.ones(1)
    call(p, torch.ops.aten.mul.Tensor).args = (other, other)


def no_value(p: ExportedProgram) -> None:
    del call(p, torch.ops.aten.mul.Tensor).meta["val"]


def odd_value(p: ExportedProgram) -> None:
    call(p, torch.ops.aten.mul.Tensor).meta["val"] = object()


def method_call(p: ExportedProgram) -> None:
    node = call(p, torch.ops.aten.mul.Tensor)
    node.op, node.target = "call_method", "mul"


def mutating_operator(p: ExportedProgram) -> None:
    call(p, torch.ops.aten.mul.Tensor).target = torch.ops.aten.mul_.Tensor


def odd_function(p: ExportedProgram) -> None:
    call(p, torch.ops.aten.mul.Tensor).target = torch.mul


def missing_attribute(p: ExportedProgram) -> None:
    next(n for n in p.graph.nodes if n.op == "get_attr").target = "nothing"


def missing_attribute_of_a_body(p: ExportedProgram) -> None:
    next(n for n in p.graph.nodes if n.op == "get_attr").target = "true_graph_0.nothing"


def body_out_of_order(p: ExportedProgram) -> None:
    body = p.graph_module.true_graph_0
    next(n for n in body.graph.nodes if n.op == "call_function").meta.pop("val")


def missing_input(p: ExportedProgram) -> None:
    p.graph_signature.input_specs.pop()


def wrong_input_name(p: ExportedProgram) -> None:
    spec(p, "PARAMETER").arg.name = "nothing"


def missing_parameter(p: ExportedProgram) -> None:
    p.state_dict.pop("linear.weight")


def parameter_is_a_tensor(p: ExportedProgram) -> None:
    p.state_dict["linear.weight"] = torch.zeros(4, 4)


def missing_buffer(p: ExportedProgram) -> None:
    p.state_dict.pop("count")


def stored_scratch(p: ExportedProgram) -> None:
    p.state_dict["scratch"] = torch.zeros(())


def missing_output(p: ExportedProgram) -> None:
    p.graph_signature.output_specs.pop()


def wrong_output_name(p: ExportedProgram) -> None:
    spec(p, "USER_OUTPUT").arg.name = "nothing"


def wrong_mutation(p: ExportedProgram) -> None:
    spec(p, "BUFFER_MUTATION").target = "nothing"


def outputs_in_another_order(p: ExportedProgram) -> None:
    p.graph_signature.output_specs.reverse()


def two_mutations_of_one_value(p: ExportedProgram) -> None:
    mutation = spec(p, "BUFFER_MUTATION")
    other = next(s for s in p.graph_signature.output_specs if s is not mutation)
    other.kind, other.target, other.arg = mutation.kind, "no_such_buffer", mutation.arg
    output = p.graph.output_node()
    first = next(v for v in output.args[0] if v.name == mutation.arg.name)
    output.args = (tuple(first for _ in output.args[0]),)


def one_value_written_to_two_buffers(p: ExportedProgram) -> None:
    mutation, other = spec(p, "BUFFER_MUTATION"), spec(p, "USER_OUTPUT")
    other.kind, other.target, other.arg = mutation.kind, "scratch", mutation.arg
    output = p.graph.output_node()
    written, _, number = output.args[0]
    output.args = ((written, written, number),)


def odd_builtin(p: ExportedProgram) -> None:
    call(p, torch.ops.aten.addmm.default).target = operator.pos


def wrong_call(p: ExportedProgram) -> None:
    argument = type(spec(p, "PARAMETER").arg)(name="nothing")
    p.module_call_graph[0].signature.inputs.append(argument)


def no_verifier(p: ExportedProgram) -> None:
    p.verifiers.clear()


BROKEN: list[Callable[[ExportedProgram], None]] = [
    out_of_order,
    foreign_node,
    no_value,
    odd_value,
    method_call,
    mutating_operator,
    odd_function,
    missing_attribute,
    missing_attribute_of_a_body,
    body_out_of_order,
    missing_input,
    wrong_input_name,
    missing_parameter,
    parameter_is_a_tensor,
    missing_buffer,
    stored_scratch,
    missing_output,
    wrong_output_name,
    wrong_mutation,
    outputs_in_another_order,
    two_mutations_of_one_value,
    one_value_written_to_two_buffers,
    odd_builtin,
    wrong_call,
    no_verifier,
]


def is_surely_valid(p: ExportedProgram) -> bool:
    checked = to_check(p.graph_module, p.verifiers, p.state_dict, p.constants)
    return checked is not None and _native.is_surely_valid(
        p.graph_signature, p.module_call_graph, checked
    )


def test_the_check_that_spares_torchs() -> None:
    """The native check never accepts what torch refuses, and accepts most valid programs."""
    assert is_surely_valid(program())
    for damage in BROKEN:
        damaged = program()
        damage(damaged)
        assert not is_surely_valid(damaged), damage.__name__


def test_the_program_is_valid() -> None:
    assert_serializes_as_torch(program())


@pytest.mark.parametrize("damage", BROKEN, ids=lambda f: f.__name__)
def test_z100_what_torch_refuses_is_refused(damage: Callable[[ExportedProgram], None]) -> None:
    damaged = program()
    damage(damaged)
    with pytest.raises(Exception) as theirs:
        damaged.validate()
    with pytest.raises(type(theirs.value)) as ours:
        serialize(damaged)
    assert str(ours.value) == str(theirs.value)

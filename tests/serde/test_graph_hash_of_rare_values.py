"""graph_hash and diff of programs with tensor subclasses, dicts as arguments, repeated nodes."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.testing._internal.two_tensor import TwoTensor

import fxpress
from fxpress import SerializeError, UnsupportedError
from tests.support.archived import OneWeight


def with_weight(weight: Tensor) -> ExportedProgram:
    program = export(OneWeight(), (torch.ones(3),), strict=False)
    program.state_dict["weight"] = weight
    return program


def hash_of(weight: Tensor) -> str:
    return fxpress.graph_hash(with_weight(weight), include_state=True)


def test_the_parts_of_a_subclass_enter() -> None:
    ones, zeros = torch.ones(3), torch.zeros(3)
    made = [hash_of(nn.Parameter(TwoTensor(a.clone(), b.clone()))) for a, b in [(ones, zeros)] * 2]
    assert made[0] == made[1]
    others = {
        *(hash_of(TwoTensor(a, b)) for a, b in [(ones, ones), (zeros, ones), (zeros, zeros)]),
        hash_of(nn.Parameter(ones)),
    }
    assert len({made[0], *others}) == 5


def test_subclasses_whose_parts_nobody_knows() -> None:
    class Opaque(Tensor):
        pass

    with pytest.raises(UnsupportedError, match="the constant weight cannot be hashed"):
        hash_of(torch.ones(3).as_subclass(Opaque))


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


def with_a_dict(key: str) -> ExportedProgram:
    """Operators that are of higher order may take dicts of values."""
    program = export(Branches(), (torch.ones(2),), strict=False)
    (cond,) = program.graph.find_nodes(op="call_function", target=torch.ops.higher_order.cond)
    (x,) = program.graph.find_nodes(op="placeholder")
    cond.args = (*cond.args, {key: x})
    return program


def test_dicts_as_arguments() -> None:
    program = with_a_dict("a")
    assert fxpress.diff(program, with_a_dict("a")) == []
    assert fxpress.graph_hash(program) == fxpress.graph_hash(with_a_dict("a"))
    found = fxpress.diff(program, with_a_dict("b"))
    assert [each.path.rpartition(".")[2] for each in found] == ["a", "b"]
    assert fxpress.graph_hash(program) != fxpress.graph_hash(with_a_dict("b"))


class Repeats(nn.Module):
    def __init__(self, repeats: bool) -> None:
        super().__init__()
        self.repeats = repeats

    def forward(self, x: Tensor) -> Tensor:
        y = x.sin()
        return y + (x.sin() if self.repeats else y)


def test_a_repeated_node_that_the_other_program_has_once() -> None:
    twice, once = (export(Repeats(r), (torch.zeros(3),), strict=False) for r in (True, False))
    (found,) = fxpress.diff(twice, once)
    assert found.path == "graph_module.graph.nodes[1]"
    assert (found.first, found.second) == ("torch.ops.aten.sin.default", None)
    assert found.nodes == ("sin_1", None)


@pytest.mark.parametrize("target", ["len.t", "add.str", "__contains__.int", "Int.Tensor"])
def test_operators_that_only_the_jit_knows(target: str) -> None:
    """The dispatcher does not have kernels for them, and raises RuntimeError."""
    packet, _, overload = target.partition(".")
    operator = getattr(getattr(torch.ops.aten, packet), overload)
    assert not torch._C._dispatch_has_kernel(operator.name())
    program = export(OneWeight(), (torch.ones(3),), strict=False)
    (node,) = (each for each in program.graph.nodes if each.op == "call_function")
    node.target = operator
    with contextlib.suppress(SerializeError):  # a node that the schema cannot hold
        fxpress.graph_hash(program)

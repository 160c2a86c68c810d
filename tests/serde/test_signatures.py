"""Each type of input and output of a signature: equal bytes, and equal after reading."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch._export.serde import serialize as torch_serialize
from torch.export import ExportedProgram, export
from torch.export.experimental import _export_forward_backward
from torch.export.graph_signature import InputKind, OutputKind

import fxpress.serialize
from tests.support.serialized import assert_travels_as_torch


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * x).sum()


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)
        self.constant = torch.ones(2)

    def forward(self, x: torch.Tensor, flag: bool) -> torch.Tensor:
        with torch.no_grad():
            self.weight.add_(1)
        self.count.add_(1)
        x.mul_(2)
        return x + self.weight + self.scratch + self.constant


class Says(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        says = torch.ops.fxpress_signatures.says
        return says(x) + says(x + 1)


def with_gradients() -> ExportedProgram:
    x = torch.ones(2, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an experimental function
        program = _export_forward_backward(export(Trained(), (x,), strict=False))
    gradient = program.graph_signature.output_specs[-1]
    gradient.target = "x"  # torch leaves the name that the input had before
    return program


def with_writes() -> ExportedProgram:
    program = export(Writes(), (torch.ones(2), True), strict=False)
    return program.run_decompositions({})


def with_tokens() -> ExportedProgram:
    return export(Says(), (torch.ones(2),), strict=False).run_decompositions({})


PROGRAMS: dict[Callable[[], ExportedProgram], set[object]] = {
    with_gradients: {
        InputKind.PARAMETER,
        InputKind.USER_INPUT,
        OutputKind.LOSS_OUTPUT,
        OutputKind.GRADIENT_TO_PARAMETER,
        OutputKind.GRADIENT_TO_USER_INPUT,
    },
    with_writes: {
        InputKind.PARAMETER,
        InputKind.BUFFER,
        InputKind.CONSTANT_TENSOR,
        InputKind.USER_INPUT,
        OutputKind.PARAMETER_MUTATION,
        OutputKind.BUFFER_MUTATION,
        OutputKind.USER_INPUT_MUTATION,
        OutputKind.USER_OUTPUT,
    },
    with_tokens: {
        InputKind.TOKEN,
        InputKind.USER_INPUT,
        OutputKind.TOKEN,
        OutputKind.USER_OUTPUT,
    },
}


@pytest.fixture(autouse=True)
def an_operator_with_effects() -> Iterator[None]:
    from torch._higher_order_ops import effects

    with torch.library._scoped_library("fxpress_signatures", "FRAGMENT") as library:
        library.define("says(Tensor x) -> Tensor")
        library.impl("says", torch.clone, "CompositeExplicitAutograd")
        says = torch.ops.fxpress_signatures.says.default
        handle = effects._register_effectful_op(says, effects._EffectType.ORDERED)
        yield
        handle.destroy()


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_kinds(make: Callable[[], ExportedProgram]) -> None:
    program = make()
    signature = program.graph_signature
    kinds = {spec.kind for spec in (*signature.input_specs, *signature.output_specs)}
    assert kinds == PROGRAMS[make]
    assert_travels_as_torch(program)


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_kinds_enter_the_hash(make: Callable[[], ExportedProgram]) -> None:
    program = make()
    read = fxpress.serialize.deserialize(fxpress.serialize.serialize(program))
    assert fxpress.graph_hash(program) == fxpress.graph_hash(make()) == fxpress.graph_hash(read)
    hashes = {fxpress.graph_hash(program)}
    specs = program.graph_signature.output_specs
    for spec in specs:  # each output that is named after something, as one of the user's
        if spec.target is not None:
            before = spec.kind, spec.target
            spec.kind, spec.target = OutputKind.USER_OUTPUT, None
            hashes.add(fxpress.graph_hash(program))
            spec.kind, spec.target = before
    assert len(hashes) == 1 + sum(spec.target is not None for spec in specs)


@pytest.mark.parametrize("side", ["input_specs", "output_specs"])
def test_a_kind_that_does_not_exist(side: str) -> None:
    program = with_writes()
    getattr(program.graph_signature, side)[-1].kind = "nothing"
    with pytest.raises(Exception, match=r"nothing|has no attribute 'name'"):
        torch_serialize.serialize(program)
    with pytest.raises(AssertionError, match=r"Unknown argument kind.*nothing"):
        fxpress.serialize.serialize(program)

"""Problems of saving and loading programs that torch's users reported."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import Dim, ExportedProgram, export

from fxpress.serialize import deserialize, serialize


def loaded(model: nn.Module, *args: Any, **options: Any) -> tuple[ExportedProgram, ExportedProgram]:
    """Return a program after it was written and read."""
    program = export(model, args, strict=False, **options)
    return program, deserialize(serialize(program))


def names(program: ExportedProgram) -> list[str]:
    return [node.name for node in program.graph.nodes]


def test_136802_floor_divisions_stay_what_they_are() -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.new_ones(x.shape[0] // 3, 2) * (x.shape[0] % 2)

    shapes = ({0: Dim("rows", min=8, max=64)},)
    program, read = loaded(Halves(), torch.randn(19, 2), dynamic_shapes=shapes)
    sizes = [
        [str(n.meta["val"].shape) for n in p.graph.nodes if isinstance(n.meta.get("val"), Tensor)]
        for p in (program, read)
    ]
    assert sizes[0] == sizes[1]
    assert any("//" in text for text in sizes[1])
    for rows in (8, 19, 64):
        expected = torch.ones(rows // 3, 2) * (rows % 2)
        assert torch.equal(read.module()(torch.randn(rows, 2)), expected)


def test_151809_lower_bounds_of_unbacked_sizes() -> None:
    class Taken(nn.Module):
        def forward(self, x: Tensor, n: Tensor) -> Tensor:
            size = n.item()
            torch._check(size >= 3)
            torch._check(size <= x.shape[0])
            return x[:size] + 1  # type: ignore[misc]

    program, read = loaded(Taken(), torch.randn(8, 2), torch.tensor(4))
    ranges = [{str(k): str(v) for k, v in p.range_constraints.items()} for p in (program, read)]
    assert ranges[0] == ranges[1]
    (text,) = ranges[1].values()
    assert text.startswith("VR[3")
    assert read.module()(torch.ones(8, 2), torch.tensor(5)).shape == (5, 2)


def test_145785_operators_with_graphs_return_tuples() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return torch.cond(
                x.sum() > 0, lambda x: (x.sin(), x + 2), lambda x: (x.cos(), x + 1), (x,)
            )

    program, read = loaded(Branches(), torch.randn(3))
    for each in (program, read):
        hop = next(n for n in each.graph.nodes if "cond" in str(n.target))
        assert type(hop.meta["val"]) is tuple
    x = torch.randn(3)
    for mine, other in zip(read.module()(x), program.module()(x), strict=True):
        assert torch.equal(mine, other)


def test_167872_fake_tensors_of_symbolic_sizes_in_the_state() -> None:
    class Scales(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    shapes = ({0: Dim("rows", min=4, max=64)},)
    program = export(Scales(), (torch.randn(7, 2),), dynamic_shapes=shapes, strict=False)
    value = next(iter(program.graph.nodes)).meta["val"]
    program._constants["held"] = value
    read = deserialize(serialize(program))
    held = read.constants["held"]
    assert isinstance(held, FakeTensor)
    placeholder = next(iter(read.graph.nodes)).meta["val"]
    assert str(held.shape) == str(placeholder.shape) == str(value.shape)
    assert held.fake_mode is placeholder.fake_mode


def test_171954_nodes_with_several_results_keep_their_names() -> None:
    class Top(nn.Module):
        def forward(self, x: Tensor) -> Any:
            first, second = x.topk(2), x.topk(1)
            return first.values + second.values, x.split(1)

    program, read = loaded(Top(), torch.randn(3, 4))
    used = [n for n in program.graph.nodes if n.users or n.op == "output"]
    assert {n.name for n in used} <= set(names(read))
    assert serialize(read).exported_program == serialize(program).exported_program


def test_142227_copies_of_a_loaded_program_have_its_names() -> None:
    class Named(nn.Module):
        def forward(self, input: Tensor, output: Tensor) -> Any:
            return {"output": input + output}

    program, read = loaded(Named(), torch.ones(2), torch.ones(2))
    copied = copy.deepcopy(read)
    assert names(read) == names(program)
    assert names(copied) == names(copy.deepcopy(program))
    assert torch.equal(
        copied.module()(torch.ones(2), torch.ones(2))["output"], torch.full((2,), 2.0)
    )

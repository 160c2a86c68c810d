"""Models to decompose, and the comparison of fxpress's results with torch's."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram, default_decompositions, export

from fxpress import decompose
from fxpress._graphs.decompose import names
from tests.support.decomposed import assert_same_program


def without_linear() -> Any:
    """The default table, but linear stays."""
    table = default_decompositions()
    del table[torch.ops.aten.linear.default]
    return table


def a_few() -> dict[Any, Any]:
    """A table of few operators, torch's own functions."""
    core = core_aten_decompositions()
    return {op: core[op] for op in list(core)[::7]}


TABLES: dict[str, Callable[[], Any]] = {
    "default": lambda: None,
    "empty": dict,
    "core": core_aten_decompositions,
    "without_linear": without_linear,
    "few": a_few,
}


def assert_decomposed_as_torch(
    program: ExportedProgram,
    table: str | Callable[[], Any] = "default",
    *,
    instantiated: bool | None = None,
    stale: bool = False,
) -> ExportedProgram:
    """Assert that both sides return equal programs, or raise exceptions of one type.

    `table`: a key of `TABLES`, or a function that returns a table.
    `instantiated`: True: fxpress must use templates; False: a full trace; None: either.
    `stale`: torch has not recompiled its module after its last edit of the graph.
    The cache of fake tensors is cleared, because a cached tensor may have another offset.
    """
    made = TABLES[table] if isinstance(table, str) else table
    FakeTensorMode.cache_clear()
    try:
        theirs = program.run_decompositions(made())
    except Exception as error:
        FakeTensorMode.cache_clear()
        try:
            decompose.run_decompositions(program, made())
        except type(error):
            return program
        raise AssertionError(f"torch raises {error!r}") from error
    if stale:
        theirs.graph_module.recompile()
    before = str(program), repr(program.graph_signature), list(program.state_dict)
    FakeTensorMode.cache_clear()
    ours = decompose.run_decompositions(program, made())
    report = decompose.report()
    assert (str(program), repr(program.graph_signature), list(program.state_dict)) == before
    assert_same_program(ours, theirs)
    if instantiated is not None:
        assert (report.reason == "") is instantiated, report
    return ours


def assert_fresh_as_torch(
    exported: Callable[[], ExportedProgram],
    table: str | Callable[[], Any] = "default",
    *,
    instantiated: bool | None = None,
) -> ExportedProgram:
    """Compare with torch on a program that has not been decomposed before.

    `exported` exports or loads the program, once for each decomposition. `instantiated` and
    `table`: as above.
    """
    made = TABLES[table] if isinstance(table, str) else table
    program = exported()
    examples = program._example_inputs
    FakeTensorMode.cache_clear()
    try:
        theirs = program.run_decompositions(made())
    except Exception as error:
        FakeTensorMode.cache_clear()
        with pytest.raises(type(error)):
            decompose.run_decompositions(exported(), made())
        return program
    for _ in range(2):
        program = exported()
        program._example_inputs = examples
        FakeTensorMode.cache_clear()
        ours = decompose.run_decompositions(program, made())
        assert_same_program(ours, theirs)
    report = decompose.report()
    if instantiated is not None:
        assert (report.reason == "") is instantiated, report
    names = [node.name for node in ours.graph.nodes]
    again = decompose.run_decompositions(program, made())
    assert [node.name for node in again.graph.nodes] == names
    return ours


def assert_equal_except_names(
    exported: Callable[[], ExportedProgram], table: str | Callable[[], Any] = "default"
) -> None:
    """Compare with torch a program that was decomposed within `any_names`.

    `exported` exports the program, once for each side. `table`: as above.
    """
    build = TABLES[table] if isinstance(table, str) else table
    theirs, ours = exported(), exported()
    ours._example_inputs = theirs._example_inputs
    FakeTensorMode.cache_clear()
    expected = theirs.run_decompositions(build())
    decompose.forget_templates()
    FakeTensorMode.cache_clear()
    with decompose.any_names():
        made = decompose.run_decompositions(ours, build())
    new_names = names.Names(expected.graph).give(made.graph)
    assert new_names is not None, "other nodes"
    arguments = [spec.arg for spec in made.graph_signature.output_specs]
    for call in made.module_call_graph:
        if call.signature is not None:
            arguments += [*call.signature.inputs, *call.signature.outputs]
    for argument in arguments:
        argument.name = new_names.get(argument.name, argument.name)
    made.graph_module.recompile()
    assert_same_program(made, expected)


def reloaded(program: ExportedProgram) -> ExportedProgram:
    """The program after a save and a load, by torch."""
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


class Block(nn.Module):
    """Norm, linear, a buffer, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.linear = nn.Linear(8, 8)
        self.register_buffer("scale", torch.full((8,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x)).relu() * self.scale


class Attention(nn.Module):
    """Linear layers whose outputs are viewed, attention, dropout that does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (y.view(2, 4, 2, 4).transpose(1, 2) for y in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dropout(self.out(y.transpose(1, 2).reshape(2, 4, 8)))


class Deep(nn.Module):
    """Blocks in a list, with constants, tied and non-persistent state, and nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.blocks[2].linear.weight = self.blocks[0].linear.weight
        self.register_buffer("hidden", torch.ones(8), persistent=False)
        self.constant = torch.arange(8.0)

    def forward(self, x: Tensor, pair: tuple[Tensor, dict[str, Tensor]]) -> Any:
        for block in self.blocks:
            x = block(x)
        first, rest = pair
        y = x + first + rest["bias"] * self.hidden + self.constant
        return {"y": y, "view": y.view(-1), "same": x, "given": first}, 3, None


class Convolutions(nn.Module):
    """Convolution, batch norm with running statistics, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
            for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return nn.functional.max_pool2d(x, 2)


class Names(nn.Module):
    """Inputs with the names that nodes would have, and with names of built-in functions."""

    def forward(self, add: Tensor, mul_1: Tensor, input: Tensor, output: Tensor) -> Tensor:
        x = add + mul_1
        y = x * input * output
        return (x + y).sum() * (x * y)


class Kinds(nn.Module):
    """Inputs that are not tensors, results of several tensors, views of views."""

    def forward(self, x: Tensor, text: str, none: None, number: float) -> Any:
        values, indices = torch.topk(x, 2)
        parts = torch.split(x, 2, dim=1)
        y = x.t()[1:].t().unsqueeze(0).expand(3, -1, -1)
        return values * number, indices, [part * 2 for part in parts], y, x.detach()


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "deep": lambda: (
        Deep().eval(),
        (torch.randn(2, 8), (torch.randn(2, 8), {"bias": torch.randn(8)})),
    ),
    "attention": lambda: (Attention().eval(), (torch.randn(2, 4, 8),)),
    "convolutions": lambda: (Convolutions().eval(), (torch.randn(1, 4, 8, 8),)),
    "names": lambda: (Names(), tuple(torch.randn(2, 2) for _ in range(4))),
    "kinds": lambda: (Kinds(), (torch.randn(4, 4), "text", None, 2.5)),
}


def program_of(name: str, *, strict: bool = False) -> ExportedProgram:
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return export(model, inputs, strict=strict)

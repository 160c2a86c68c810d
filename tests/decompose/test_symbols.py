"""Programs with sizes that are symbols: instantiated where a trace adds no guard."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram, export
from torch.fx import Graph

import fxpress
from fxpress import decompose
from fxpress._graphs.decompose.names import Names, Naming
from tests.support.architectures import FAMILIES, architecture
from tests.support.decompose_cases import (
    MODELS,
    Block,
    assert_equal_except_names,
    assert_fresh_as_torch,
    reloaded,
)
from tests.support.decomposed import assert_same_decomposed
from tests.support.exported import dynamic_shapes, tokens, transformer
from tests.support.memory import check_no_object_leaks
from tests.support.sampled import turns
from tests.unflatten.test_concurrent_threads import together

ROWS, COLUMNS = Dim("rows", min=4, max=512), Dim("columns", min=4, max=1024)


class Functions(nn.Module):
    """Calls functions one after the other on one input."""

    def __init__(self, *functions: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: Tensor) -> Any:
        return [function(x) for function in self.functions]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (y.view(rows, columns, 2, 4).transpose(1, 2) for y in (q, k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + y.transpose(1, 2).reshape(rows, columns, 8)


def _sizes(x: Tensor) -> Any:
    rows, columns, _ = x.shape
    return torch.zeros(rows, columns * 2) + 1, columns + rows // 2, columns * 2, rows


def _inverse_order(x: Tensor) -> Tensor:
    order = x.reshape(-1).sort().indices
    inverse = torch.empty_like(order)  # torch computes the size, a product of three numbers
    return inverse.index_put_((order,), torch.arange(x.shape[0] * x.shape[1] * 8))


def of_functions() -> ExportedProgram:
    functions = (
        _inverse_order,
        lambda x: x.view(x.shape[0] * x.shape[1], 8).sin().view(x.shape[0], -1, 8),
        lambda x: x.reshape(-1, 4) + 1,
        lambda x: torch.cat([x, x]).view(-1, 8) * 2,
        lambda x: x[:, :, 0] + torch.arange(x.shape[1]),
        lambda x: x.softmax(1).transpose(1, 2) @ x,
        lambda x: torch.zeros_like(x.sin()) + torch.ones_like(x),
        lambda x: x[:1].expand(x.shape[0], -1, -1) * x,
        lambda x: [y * 2 for y in x.split(4, dim=-1)],
        lambda x: torch.diff(x, dim=1, prepend=x[:, :1]),
        lambda x: torch.einsum("bij,bkj->bik", x, x),
        lambda x: torch.full((x.shape[1], x.shape[1]), -1.0).triu(1) + x @ x.transpose(1, 2),
        lambda x: x.repeat(1, 2, 1) + nn.functional.pad(x, (0, 0, 0, x.shape[1])),
        lambda x: x.max(1).values + x.argmax(1) + x.mean(1) / x.shape[1],
        lambda x: x.flatten(0, 1).t().contiguous().unsqueeze(0),
        lambda x: x[1:, : x.shape[1] - 1] + x[1:, 1:],
        lambda x: x.var() + x.norm(dim=1) + x.cumsum(1)[:, 0],
        _sizes,
    )
    shapes = {"x": {0: ROWS, 1: COLUMNS}}
    inputs = (torch.randn(4, 6, 8),)
    return export(Functions(*functions), inputs, dynamic_shapes=shapes, strict=False)


def of_attention(layers: int = 3) -> ExportedProgram:
    torch.manual_seed(0)
    model = nn.Sequential(*(Attention() for _ in range(layers)))
    return export(
        model, (torch.randn(4, 5, 8),), dynamic_shapes=[{0: ROWS, 1: COLUMNS}], strict=False
    )


def of_convolutions() -> ExportedProgram:
    torch.manual_seed(0)
    model, _ = MODELS["convolutions"]()
    return export(model, (torch.randn(4, 4, 8, 8),), dynamic_shapes=[{0: ROWS}], strict=False)


def of_blocks() -> ExportedProgram:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.blocks = nn.Sequential(Block(), Block())

        def forward(self, x: Tensor, count: int, y: Tensor) -> Any:
            return self.blocks(x) * count + y.sum(), torch.ones(count), count + x.shape[0]

    shapes = {"x": {0: ROWS}, "count": Dim.DYNAMIC, "y": {0: Dim.AUTO, 1: ROWS}}
    return export(
        Scaled(), (torch.randn(4, 8), 7, torch.randn(3, 4)), dynamic_shapes=shapes, strict=False
    )


PROGRAMS = {
    "functions": of_functions,
    "attention": of_attention,
    "convolutions": of_convolutions,
    "blocks": of_blocks,
}


def test_a_full_trace_does_not_depend_on_templates_that_were_not_used() -> None:
    def exported() -> ExportedProgram:
        def ones(x: Tensor) -> Tensor:
            return torch.empty_like(x.transpose(0, 1).reshape(-1).sort().values).fill_(1)

        shapes = {"x": {0: ROWS, 1: COLUMNS}}
        return export(Functions(ones), (torch.randn(4, 6, 8),), dynamic_shapes=shapes)

    FakeTensorMode.cache_clear()
    theirs = exported().run_decompositions()
    for _ in range(2):
        FakeTensorMode.cache_clear()
        ours = decompose.run_decompositions(exported())
        assert_same_decomposed(ours.graph_module, theirs.graph_module)
    assert "needs a size that no node" in decompose.report().reason


@pytest.mark.slow("programs that torch decomposes")
@pytest.mark.parametrize(("name", "table"), turns([*PROGRAMS], ["default", "empty"]))
def test_as_torch(name: str, table: str) -> None:
    assert_fresh_as_torch(PROGRAMS[name], table, instantiated=True)


def _names(program: ExportedProgram) -> list[tuple[str, list[str]]]:
    return [(node.name, [user.name for user in node.users]) for node in program.graph.nodes]


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.linear(x) * y.unsqueeze(-1) + torch.arange(y.shape[1]).unsqueeze(-1)


def test_programs_that_fxpress_loads_get_the_names_of_those_that_torch_loads() -> None:
    """The numbers in names depend on which sizes of the two inputs are one object."""
    inputs = torch.randn(4, 5, 8), torch.randn(4, 5)
    shapes = ({0: ROWS, 1: COLUMNS},) * 2
    file = io.BytesIO()
    torch.export.save(export(_Scaled(), inputs, dynamic_shapes=shapes), file)
    names = []
    for load in (torch.export.load, fxpress.load):
        file.seek(0)
        program = load(file)
        FakeTensorMode.cache_clear()
        names.append(_names(program.run_decompositions()))
    assert names[1] == names[0]


@pytest.mark.slow("programs that torch decomposes")
def test_names_do_not_depend_on_other_programs() -> None:
    """torch's second decomposition of a program has other names than its first, and a program from
    a file has other names than one that was exported."""
    expected = _names(of_attention().run_decompositions())
    from_file = _names(reloaded(of_attention()).run_decompositions())
    decompose.forget_templates()
    for layers in (2, 4):
        decompose.run_decompositions(of_attention(layers))
    decompose.run_decompositions(of_attention(), {})
    for traced in (True, False):
        program = of_attention()
        decomposed = [_names(decompose.run_decompositions(program)) for _ in range(3)]
        assert decomposed == [expected] * 3
        loaded = reloaded(of_attention())
        assert _names(decompose.run_decompositions(loaded)) == from_file
        assert bool(decompose.report().reason) is traced


def test_programs_that_are_not_instantiated_repeat_their_names() -> None:
    class Written(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.relu()
            y.view(-1, 4).mul_(2)
            return y.reshape(-1, 2) * x.shape[0]

    model = nn.Sequential(Attention(), Attention(), Written())
    example, shapes = (torch.randn(4, 5, 8),), ({0: ROWS, 1: COLUMNS},)
    theirs, ours = (export(model, example, dynamic_shapes=shapes) for _ in range(2))
    expected = _names(theirs.run_decompositions())
    assert _names(theirs.run_decompositions()) != expected
    assert [_names(decompose.run_decompositions(ours)) for _ in range(2)] == [expected] * 2
    assert decompose.report().reason


@pytest.mark.deep("programs that torch decomposes")
@pytest.mark.parametrize("name", ["attention", "blocks"])
def test_from_files_and_twice(name: str) -> None:
    assert_fresh_as_torch(lambda: reloaded(PROGRAMS[name]()), "empty", instantiated=True)

    def once() -> ExportedProgram:
        return reloaded(PROGRAMS[name]().run_decompositions({}))

    assert_fresh_as_torch(once, instantiated=True)


@pytest.mark.deep("a model of transformers")
def test_llama() -> None:
    pytest.importorskip("transformers")
    shapes = [{1: Dim("tokens", min=2, max=64)}]
    model = transformer("llama")
    assert_fresh_as_torch(
        lambda: export(model, (tokens(),), dynamic_shapes=shapes, strict=False), instantiated=True
    )


@pytest.mark.slow("programs that torch decomposes")
def test_alike_programs_share_templates() -> None:
    decompose.forget_templates()
    for layers in (1, 1, 2, 2):  # the first of each kind is traced
        decompose.run_decompositions(of_attention(layers))
    report = decompose.report()
    assert report.kept > report.traced
    with decompose.check_templates():
        decompose.run_decompositions(of_attention(2))
    assert decompose.report().traced == 0


def test_checks_compare_names_and_users(monkeypatch: pytest.MonkeyPatch) -> None:
    give = Names.give

    def give_wrong_name(names: Names, graph: Graph) -> Any:
        given = give(names, graph)
        next(n for n in graph.nodes if n.op == "call_function").name = "other"
        return given

    def give_other_order(names: Names, graph: Graph) -> Any:
        given = give(names, graph)
        users = next(n.users for n in graph.nodes if len(n.users) > 1)
        users[next(iter(users))] = users.pop(next(iter(users)))
        return given

    decompose.run_decompositions(of_attention(1))
    for wrong, match in ((give_wrong_name, "'other'"), (give_other_order, "users of node")):
        monkeypatch.setattr(Names, "give", wrong)
        with decompose.check_templates(), pytest.raises(fxpress.InternalError, match=match):
            decompose.run_decompositions(of_attention(1))
    monkeypatch.undo()
    with decompose.check_templates():
        decompose.run_decompositions(of_attention(1))


@pytest.mark.parametrize("name", ["attention", "blocks"])
def test_d38_any_names(name: str) -> None:
    assert_equal_except_names(PROGRAMS[name])
    report = decompose.report()
    assert report.reason == ""
    assert report.traced > 0


@pytest.mark.slow("models of transformers")
@pytest.mark.parametrize(("family", "table"), turns([*FAMILIES], ["default", "empty"]))
def test_d38_any_names_of_families(family: str, table: str) -> None:
    pytest.importorskip("transformers")
    made = architecture(family, 2, masked=True)
    shapes = dynamic_shapes(made.args, made.kwargs, 2)
    assert_equal_except_names(
        lambda: export(made.model, made.args, made.kwargs, dynamic_shapes=shapes, strict=False),
        table,
    )


def test_returned_views_whose_size_is_a_constant() -> None:
    """torch adds a guard, which decides whether the view is its entire base."""

    class First(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return (x + 1)[:2], x.sin().narrow(0, 0, 3)

    def exported() -> ExportedProgram:
        return export(First(), (torch.randn(5, 4),), dynamic_shapes=({0: Dim.AUTO},))

    assert_equal_except_names(exported)
    assert assert_fresh_as_torch(exported, instantiated=False)._guards_code


def test_d38_other_blocks_and_programs() -> None:
    """Programs outside the block, and on its ShapeEnv, get names of full traces."""
    expected = _names(of_attention().run_decompositions())
    decompose.forget_templates()
    FakeTensorMode.cache_clear()
    with decompose.any_names(), decompose.check_templates():  # compares all except names
        program = of_attention()
        decompose.run_decompositions(program)
        with decompose.any_names(False):
            FakeTensorMode.cache_clear()
            assert _names(decompose.run_decompositions(of_attention())) == expected
        assert _names(decompose.run_decompositions(of_attention())) == expected
    assert decompose.report().reason == ""
    decompose.run_decompositions(program)
    assert decompose.report().reason


def test_checks_compare_programs_with_any_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop_meta(naming: Naming, graph: Graph) -> None:
        graph.output_node().args[0][0].meta.pop("stack_trace")

    monkeypatch.setattr(Naming, "instantiated", drop_meta)
    decompose.forget_templates()
    fails = pytest.raises(fxpress.InternalError, match="meta of node")
    with decompose.any_names(), decompose.check_templates(), fails:
        decompose.run_decompositions(of_attention(1))


@pytest.mark.slow("programs that torch decomposes")
def test_guards_and_sizes_of_data_are_traced_as_a_whole() -> None:
    def squeezed(x: Tensor) -> Tensor:
        return x.nonzero().squeeze(0) * 2

    shapes = {"x": {0: ROWS, 1: COLUMNS}}
    inputs = (torch.randn(4, 6, 8),)
    assert_fresh_as_torch(
        lambda: export(Functions(squeezed), inputs, dynamic_shapes=shapes, strict=False),
        instantiated=False,
    )


class _Halves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[1] // 2
        return torch.cat([x[:, :half], x[:, half:]], 1)


class _Where(nn.Module):
    """Returns a view; torch compares its size with the size of the base."""

    def forward(self, x: Tensor) -> Any:
        return (x * x.shape[0]).transpose(0, 1), x.shape[0]


@pytest.mark.parametrize(
    ("model", "shape", "dims"),
    [(_Halves, (3, 6, 4), {0: Dim.AUTO, 1: Dim.AUTO}), (_Where, (4, 6), {0: Dim.AUTO})],
)
def test_guards_of_programs_that_nothing_decomposed_before(
    model: type[nn.Module], shape: tuple[int, ...], dims: Any
) -> None:
    """torch evaluates a program's guards first, and records some again; which ones depends on
    earlier exports of the process."""
    theirs, ours = (
        export(model(), (torch.randn(shape),), dynamic_shapes=(dims,)) for _ in range(2)
    )
    expected = theirs.run_decompositions()._guards_code
    assert expected or model is _Where
    assert set(decompose.run_decompositions(ours)._guards_code) == set(expected)


class _Pairs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        torch._check(x.shape[0] % 2 == 0)
        return x.view(-1, 2, x.shape[1]).sum(1).relu()


def test_guards_of_a_loaded_program_are_evaluated_before_templates_are_used() -> None:
    """Without the guard on the size, the trace of `view` would add a guard."""
    dims = ({0: Dim.AUTO, 1: Dim.AUTO},)
    assert_equal_except_names(
        lambda: reloaded(export(_Pairs(), (torch.randn(4, 6),), dynamic_shapes=dims))
    )
    assert not decompose.report().reason


@pytest.mark.deep("decomposes a program in several threads, and eight times")
def test_threads_and_memory() -> None:
    program = of_attention(2)
    expected = [node.name for node in decompose.run_decompositions(program).graph.nodes]
    decompose.run_decompositions(program)  # makes the templates; torch cannot trace in two threads
    made = together(lambda _: decompose.run_decompositions(program))
    assert [[n.name for n in each.graph.nodes] for each in made] == [expected] * len(made)
    check_no_object_leaks(lambda: decompose.run_decompositions(program) and None)

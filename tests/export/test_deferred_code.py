"""The code of the modules that exports make: generated when it is first read, and as torch's."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram, export
from torch.fx import Graph, GraphModule
from torch.fx.graph import PythonCode

from fxpress._torch.deferred_code import deferring
from tests.support.captured import outcome
from tests.support.deferred import is_deferred
from tests.support.programs import Side, assert_same_module, exported_by_us


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sin()


class Branches(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: self.linear(x).sin(), lambda x: x.cos(), (x,))


CASES = {"nonstrict": (Net, False), "strict": (Net, True), "branches": (Branches, False)}


@pytest.fixture(
    params=[
        "nonstrict",
        pytest.param("strict", marks=pytest.mark.deep("Dynamo traces each model twice")),
        pytest.param("branches", marks=pytest.mark.deep("three graphs each")),
    ]
)
def pair(request: pytest.FixtureRequest) -> tuple[ExportedProgram, ExportedProgram]:
    cls, strict = CASES[request.param]
    model, args = cls(), (torch.rand(2, 4),)
    theirs = export(model, args, strict=strict)
    return exported_by_us(model, args, strict=strict), theirs


Pair = tuple[ExportedProgram, ExportedProgram]


def same(ours: GraphModule, theirs: GraphModule) -> None:
    assert_same_module(ours, theirs, Side(), Side())


def test_it_is_deferred(pair: Pair) -> None:
    assert is_deferred(pair[0].graph_module)
    assert not is_deferred(pair[1].graph_module)


READS: dict[str, Callable[[GraphModule], Any]] = {
    "code": lambda m: m.code,
    "_code": lambda m: m._code,
    "_lineno_map": lambda m: m._lineno_map,
    "_prologue_start": lambda m: m._prologue_start,
    "forward": lambda m: m.forward.__code__.co_code,
    "class": lambda m: type(m).forward.__code__.co_varnames,
    "signature": lambda m: str(inspect.signature(m.forward)),
    "source": lambda m: inspect.getsource(m.forward),
    "has": lambda m: hasattr(m, "_code"),
    "recompile": lambda m: m.recompile().src,
    "readable": lambda m: m.print_readable(print_output=False),
    "text": str,
}


@pytest.mark.parametrize("what", sorted(READS))
def test_a_first_read(pair: Pair, what: str) -> None:
    ours, theirs = (program.graph_module for program in pair)
    read = READS[what]
    assert Side().described(read(ours)) == Side().described(read(theirs))
    same(ours, theirs)


COPIES: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "save": lambda m: _saved(m),
    "again": lambda m: GraphModule(m, m.graph),
}


def _saved(module: Any) -> Any:
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


@pytest.mark.parametrize("way", sorted(COPIES))
def test_copies(way: str) -> None:
    model, args = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.rand(2, 4),)
    theirs = export(model, args).graph_module
    ours = exported_by_us(model, args).graph_module
    for module in (ours, theirs):
        for node in module.graph.nodes:
            node.meta = {}  # torch cannot pickle all of it
    copies = [outcome(lambda module=module: COPIES[way](module)) for module in (ours, theirs)]
    if isinstance(copies[1], Exception):  # torch 2.13 and 2.14 cannot read their pickles
        assert str(copies[0]) == str(copies[1])
    else:
        same(*copies)
    same(ours, theirs)


def test_deep_copies_of_programs(pair: Pair) -> None:
    ours, theirs = (copy.deepcopy(program) for program in pair)
    same(ours.graph_module, theirs.graph_module)


def edit(module: GraphModule) -> None:
    output = module.graph.output_node()
    (value,) = output.args[0]
    with module.graph.inserting_before(output):
        negated = module.graph.call_function(torch.ops.aten.neg.default, (value,))
    output.replace_input_with(value, negated)


@pytest.mark.parametrize("read", [False, True])
def test_recompile_after_an_edit(pair: Pair, read: bool) -> None:
    ours, theirs = (program.graph_module for program in pair)
    if read:
        assert ours.code == theirs.code
    edit(ours)
    edit(theirs)
    if read:
        assert ours.code == theirs.code
    results = [module.recompile() for module in (ours, theirs)]
    assert results[0].src == results[1].src
    assert results[0]._lineno_map == results[1]._lineno_map
    same(ours, theirs)


# ---- in a block ---------------------------------------------------------------------------------


def small() -> Graph:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.sin, (x,)))
    return graph


def test_results_of_recompile_in_a_block() -> None:
    theirs = GraphModule({}, small()).recompile()
    with deferring():
        module = GraphModule({}, small())
        ours = module.recompile()
        assert is_deferred(module)
    assert isinstance(ours, PythonCode)
    for each in dataclasses.fields(PythonCode):
        assert getattr(ours, each.name) == getattr(theirs, each.name)


class Own(GraphModule):
    pass


def test_classes_of_the_user_are_not_deferred() -> None:
    with deferring():
        module = Own({}, small())
    assert not is_deferred(module)
    assert "_code" in vars(module)


def test_modules_made_in_a_block() -> None:
    theirs = GraphModule({"inner": GraphModule({}, small())}, small())
    with deferring():
        ours = GraphModule({"inner": GraphModule({}, small())}, small())
        assert is_deferred(ours)
    x = torch.rand(3)
    assert torch.equal(ours(x), theirs(x))
    same(ours, theirs)


def test_a_forward_that_is_set() -> None:
    def forward(self: Any, x: Any) -> Any:
        return x + 1

    results = []
    for block in (contextlib.nullcontext, deferring):
        with block():
            module = GraphModule({}, small())
            type(module).forward = forward
            results.append(module(torch.zeros(1)).item())
            module.recompile()
            results.append(module(torch.zeros(1)).item())
    assert results == [1.0, 0.0, 1.0, 0.0]


def test_modules_that_are_called_in_a_block() -> None:
    with deferring():
        module = GraphModule({}, small())
        x = torch.rand(3)
        assert torch.equal(module(x), x.sin())
        node = next(n for n in module.graph.nodes if n.op == "call_function")
        node.target = torch.cos
        assert torch.equal(module(x), x.sin())
        module.recompile()
        assert torch.equal(module(x), x.cos())
        assert "cos" in module.code

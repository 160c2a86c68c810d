"""Code of graphs whose inputs are flattened, and whose outputs are built, by tree specs."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch.fx import Graph
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.utils import _pytree as pytree

from fxpress import _native
from fxpress._torch import deferred_code, native_tables

native_tables.fx()


def graph_of(placeholders: list[str], codegen: Any, *, outputs: int = 2) -> Graph:
    graph = Graph()
    inputs = [graph.placeholder(name) for name in placeholders]
    total = graph.call_function(torch.sin, (inputs[0] if inputs else 1,))
    for each in inputs[1:]:
        total = graph.call_function(torch.add, (total, each))
    graph.output((total,) * outputs)
    graph.set_codegen(codegen)
    return graph


def codegen(names: list[str], inputs: Any, outputs: Any) -> _PyTreeCodeGen:
    out_spec = None if outputs is None else pytree.tree_structure(outputs)
    return _PyTreeCodeGen(_PyTreeInfo(names, pytree.tree_structure(inputs), out_spec))


GRAPHS = {
    "positional": graph_of(["x", "y"], codegen(["x", "y"], ((0, 0), {}), (0, 0))),
    "nested": graph_of(["x_0", "x_1"], codegen(["x"], (([0, 0],), {}), {"a": 0, "b": 0})),
    "keywords": graph_of(["x", "k"], codegen(["x", "k"], ((0,), {"k": 0}), [0, 0])),
    "odd keys": graph_of(
        ["x", "y", "z"], codegen(["x", "a", "b"], ((0,), {"it's": 0, 'q"': 0}), [0, 0])
    ),
    "inputs alone": graph_of(["x", "y"], codegen(["x", "y"], (0, 0), (0, 0))),
    "ordered": graph_of(["x"], codegen(["x"], ((OrderedDict(a=0),), {}), (0, 0))),
    "no inputs": graph_of([], codegen([], ((), {}), (0, 0))),
    "no spec of outputs": graph_of(["x"], codegen(["x"], ((0,), {}), None)),
    "builtin names": graph_of(["input", "max"], codegen(["input", "max"], ((0, 0), {}), (0, 0))),
    "arguments named as values": graph_of(
        ["x", "y"], codegen(["sin", "add"], ((0, 0), {}), (0, 0))
    ),
    "fewer names than keys": graph_of(["x", "y"], codegen(["x"], ((0,), {"y": 0}), (0, 0))),
    "one output": graph_of(["x"], codegen(["x"], ((0,), {}), 0), outputs=1),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_code_is_torchs(name: str) -> None:
    graph = GRAPHS[name]
    native = _native.python_source(graph)
    assert native is not None
    text, names, lines, start, *_ = native
    torchs = graph.python_code("self")
    assert text == torchs.src
    assert lines == torchs._lineno_map
    assert start == torchs._prologue_start
    assert {k: v for k, v in names.items() if k != "__builtins__"} == torchs.globals


def with_default() -> Graph:
    graph = GRAPHS["positional"].__deepcopy__()
    graph.find_nodes(op="placeholder")[1].args = (1,)
    return graph


def transformed() -> Graph:
    graph = GRAPHS["positional"].__deepcopy__()
    graph._codegen._body_transformer = lambda body: body
    return graph


def of_a_subclass() -> Graph:
    class Special(_PyTreeCodeGen):
        pass

    graph = GRAPHS["positional"].__deepcopy__()
    graph.set_codegen(Special(graph._codegen.pytree_info))
    return graph


@pytest.mark.parametrize(
    "graph",
    [
        with_default(),
        transformed(),
        of_a_subclass(),
        graph_of(["self", "x"], codegen(["self", "x"], ((0, 0), {}), (0, 0))),
        graph_of(["*args"], codegen(["args"], ((0,), {}), (0, 0))),
        graph_of(["x"], _PyTreeCodeGen(None)),
        graph_of(["x"], codegen(["x\x01"], ((0,), {}), (0, 0))),
        graph_of(["x", "y"], codegen(["x", "y"], ((0,), {"y\x01": 0}), (0, 0))),
    ],
    ids=["default", "transformed", "subclass", "self", "star", "no info", "mark", "mark in a key"],
)
def test_what_only_torch_writes(graph: Graph) -> None:
    assert _native.python_source(graph) is None


def test_alike_sources_share_one_compilation() -> None:
    first, second = (graph_of([name], codegen([name], ((0,), {}), (0, 0))) for name in ("ab", "cd"))
    shapes = [_native.python_source(graph)[4] for graph in (first, second)]
    assert shapes[0] == shapes[1] is not None
    functions = [deferred_code._generated(graph)[1] for graph in (first, second)]
    assert [f.__code__.co_varnames[1] for f in functions] == ["ab", "cd"]

"""torch's own users of unflatten with ours in torch's place, and objects that were made before."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import export
from torch.fx import GraphModule

import fxpress
import fxpress.unflatten
from tests.support.unflatten_cases import exported
from tests.support.unflatten_compare import (
    assert_runs_as_eager,
    assert_same_unflattened,
    assert_same_unflattened_graph,
)
from tests.support.unflatten_models import Nest, Repeated, Shared

theirs = importlib.import_module("torch.export.unflatten")
CLASSES = ("InterpreterModule", "InterpreterModuleDispatcher", "UnflattenedModule")


def args() -> tuple[Tensor, ...]:
    return torch.randn(3, 4), torch.randn(3, 4)


def test_every_importer_of_the_installed_torch_gets_ours() -> None:
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    ir = importlib.import_module(f"{pipelining.__name__}._IR")
    frames = importlib.import_module(f"{pipelining.__name__}._unflatten")
    unlift = importlib.import_module("torch.export._unlift")
    holders: list[tuple[Any, tuple[str, ...]]] = [
        (torch.export, ("unflatten", "UnflattenedModule")),
        (unlift, ("_assign_attr",)),
        (frames, ("_ModuleFrame", "_SubmoduleEntry")),
        (ir, ("_assign_attr", "_sink_params", "InterpreterModule")),
        (
            theirs,
            (
                *CLASSES,
                "unflatten",
                "_generate_unflatten",
                "_generate_flatten_spec",
                "_assign_attr",
            ),
        ),
    ]
    before = {(id(holder), n): getattr(holder, n) for holder, names in holders for n in names}
    with fxpress.installed():
        for holder, names in holders:
            for name in names:
                assert getattr(holder, name) is not before[id(holder), name], (holder, name)
                assert getattr(holder, name) is getattr(theirs, name)
    for holder, names in holders:
        assert all(getattr(holder, name) is before[id(holder), name] for name in names)
    assert torch.export.FlatArgsAdapter is fxpress.unflatten.FlatArgsAdapter


def test_torch_export_unflatten_gives_ours() -> None:
    model, inputs = Nest(), args()
    program = exported(model, *inputs)
    with fxpress.installed():
        ours = torch.export.unflatten(program)
    assert type(ours) is fxpress.unflatten.UnflattenedModule
    assert_same_unflattened(ours, torch.export.unflatten(program), program)
    assert_runs_as_eager(ours, model, inputs)


def test_isinstance_both_ways() -> None:
    program = exported(
        Repeated(nn.Linear(4, 4)), args()[0], preserve_module_call_signature=("inner",)
    )
    before = theirs.unflatten(copy.deepcopy(program))
    ours = fxpress.unflatten.unflatten(program)

    def members(root: Any) -> dict[str, Any]:
        return {
            "InterpreterModule": root.inner.call_modules()[0],
            "InterpreterModuleDispatcher": root.inner,
            "UnflattenedModule": root,
        }

    for name in CLASSES:
        mine, other = members(ours)[name], members(before)[name]
        own, original = getattr(fxpress.unflatten, name), getattr(theirs, name)
        assert isinstance(mine, original)
        with fxpress.installed():
            assert isinstance(other, getattr(theirs, name)), "made by torch before"
            assert isinstance(mine, getattr(theirs, name))
        assert isinstance(mine, own)
        assert type(mine) is own
        assert type(other) is original


def test_deriving_from_torchs_name_gives_our_class() -> None:
    with fxpress.installed():

        class Mine(theirs.UnflattenedModule):  # type: ignore[misc]
            pass

        module = Mine(exported(Nest(), *args()))
    assert isinstance(module, fxpress.unflatten.UnflattenedModule)
    assert module(*args()).shape == (3, 4)


def test_torchs_constructors_in_our_place() -> None:
    """Classes made through torch's names work with our helpers, and the other way round."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    weight = graph.placeholder("p_weight")
    graph.output(graph.call_function(torch.ops.aten.mul.Tensor, (x, weight)))
    with fxpress.installed():
        module = theirs.InterpreterModule(graph, ty="some.Class")
        theirs._assign_attr(
            nn.Parameter(torch.full((2,), 3.0)), module, "weight", theirs._AttrKind.PARAMETER
        )
        theirs._sink_params(module, {"p_weight": ["weight"]}, [])
    assert module.type_name() == "some.Class"
    torch.testing.assert_close(module(torch.ones(2)).detach(), torch.full((2,), 3.0))


def test_unlift() -> None:
    """ep.module() assigns state by `_assign_attr`."""
    model, x = Shared(), torch.randn(2, 4)
    program = exported(model, x)
    expected = program.module()
    with fxpress.installed():
        module = program.module()
        again = export(module, (x,)).module()
    assert list(module.state_dict()) == list(expected.state_dict())
    assert module.a.weight is module.c.weight
    for each in (module, again):
        torch.testing.assert_close(each(x), model(x))


class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(4, 4)
        self.constant = torch.arange(4.0)
        self.register_buffer("kept", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x) * self.constant + torch.tensor([1.0, 2.0, 3.0, 4.0]) * self.kept


@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
def test_export_utils(strict: bool) -> None:
    """`_register_constants_as_buffers` goes by the module's attributes, in strict export."""
    model, x = Constants(), torch.randn(2, 4)
    expected = export(model, (x,), strict=strict)
    with fxpress.installed():
        program = export(model, (x,), strict=strict)
        program = program.run_decompositions({})
    assert list(program.constants) == list(expected.constants)
    torch.testing.assert_close(program.module()(x), model(x))


def test_compile_fx_unlift_graph() -> None:
    from torch._functorch.aot_autograd import aot_export_module
    from torch._inductor.compile_fx import _unlift_graph

    class Tuple(Constants):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (super().forward(x),)

    x = torch.randn(2, 4)
    module = torch.export.export(Tuple().requires_grad_(False), (x,)).module()
    graph, signature = aot_export_module(module, (x,), trace_joint=False)

    def unlifted() -> GraphModule:
        return _unlift_graph(module, copy.deepcopy(graph), signature)

    expected = unlifted()
    with fxpress.installed():
        result = unlifted()
    assert result.code == expected.code
    assert list(result.state_dict()) == list(expected.state_dict())


class Staged(nn.Module):
    """A tied head, a buffer of the root's that both stages use, a nested layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(16, 4)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4)) for _ in range(4)
        )
        self.register_buffer("scale", torch.full((4,), 0.5))
        self.head = nn.Linear(4, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x) * self.scale
        return self.head(x)


def test_pipelining() -> None:
    pipelining = pytest.importorskip("torch.distributed.pipelining")
    tokens = torch.randint(0, 16, (2, 6))
    spec = {f"layers.{i}": pipelining.SplitPoint.BEGINNING for i in (1, 3)}
    theirs_pipe = pipelining.pipeline(Staged(), (tokens,), split_spec=spec)
    with fxpress.installed():
        pipe = pipelining.pipeline(Staged(), (tokens,), split_spec=spec)
    assert pipe.num_stages == theirs_pipe.num_stages == 3
    (result,) = torch.utils._pytree.tree_leaves(pipe(tokens))
    torch.testing.assert_close(result, Staged()(tokens))
    for index in range(3):
        mine, other = pipe.get_stage_module(index), theirs_pipe.get_stage_module(index)
        assert mine.code == other.code
        assert list(mine.state_dict()) == list(other.state_dict())
        names = [[n for n, _ in stage.named_modules()] for stage in (mine, other)]
        assert names[0] == names[1]
        for name in names[0]:
            child, wanted = mine.get_submodule(name), other.get_submodule(name)
            if isinstance(wanted, (theirs.InterpreterModule, GraphModule)):
                assert [(n.name, n.op, n.target) for n in child.graph.nodes] == [
                    (n.name, n.op, n.target) for n in wanted.graph.nodes
                ], name


def test_pipeline_outline() -> None:
    """`_outline_submodules` of pipelining builds frames by itself, around a plain GraphModule."""
    pytest.importorskip("torch.distributed.pipelining")
    from torch.distributed.pipelining._unflatten import _outline_submodules

    model, tokens = Staged(), torch.randint(0, 16, (2, 6))
    graph = exported(model, tokens).graph
    expected = _outline_submodules(graph)
    with fxpress.installed():
        outlined = _outline_submodules(graph)
    assert outlined.code == expected.code
    names = [[n for n, _ in m.named_modules()] for m in (outlined, expected)]
    assert names[0] == names[1]
    for name in names[0][1:]:
        mine, other = outlined.get_submodule(name), expected.get_submodule(name)
        if isinstance(getattr(other, "graph", None), torch.fx.Graph):
            assert_same_unflattened_graph(mine.graph, other.graph, name)


def test_pickles_made_while_installed_are_read_without() -> None:
    model, inputs = Nest(), args()
    with fxpress.installed():
        data = pickle.dumps(torch.export.unflatten(exported(model, *inputs)))
    again = pickle.loads(data)
    assert type(again) is fxpress.unflatten.UnflattenedModule
    assert_runs_as_eager(again, model, inputs)
    with fxpress.installed():
        assert_runs_as_eager(pickle.loads(data), model, inputs)


def test_objects_of_torch_keep_working() -> None:
    model, inputs = Nest(), args()
    before = theirs.unflatten(exported(model, *inputs))
    with fxpress.installed():
        torch.testing.assert_close(before(*inputs), model(*inputs))
        assert type(before) is not fxpress.unflatten.UnflattenedModule
    torch.testing.assert_close(before(*inputs), model(*inputs))


def test_the_torch_module_is_not_the_function() -> None:
    assert sys.modules["torch.export.unflatten"] is theirs
    with fxpress.installed():
        assert sys.modules["torch.export.unflatten"] is theirs
        assert torch.export.unflatten is theirs.unflatten


def test_dynamo_inlines_ours_when_installed() -> None:
    model, inputs = Nest(), args()
    torch._dynamo.reset()
    with fxpress.installed():
        module = torch.export.unflatten(exported(model, *inputs))
        compiled = torch.compile(module, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(*inputs), model(*inputs))
    torch._dynamo.reset()

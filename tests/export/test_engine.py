"""Modules of programs that run on the engine."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.fx import GraphModule, symbolic_trace

from fxpress._torch.fx import PENDING
from fxpress.export import module
from tests.export.test_differential_programs import MODELS, made
from tests.export.test_module import CALLS, stateful
from tests.support.exported import exported_or_skipped
from tests.support.sampled import turns
from tests.support.unflatten_compare import assert_runs_as_eager, assert_same_outputs
from tests.support.unflatten_models import Nest
from tests.support.unlifted import assert_runs_alike, assert_same_graph, torchs

pytestmark = pytest.mark.slow("exports by torch and by us")

X = torch.linspace(-1.0, 1.0, 12).view(3, 4)


def nest() -> ExportedProgram:
    torch.manual_seed(0)
    return export(Nest(), (X, X), strict=False)


def on_engine(program: ExportedProgram, **options: Any) -> GraphModule:
    return module(program, engine=True, **options)


def has_code(made: GraphModule) -> bool:
    return PENDING not in vars(type(made))


@pytest.mark.deep("exports and decompositions")
@pytest.mark.parametrize(("name", "decomposed"), turns(sorted(MODELS), [False, True]))
def test_models(name: str, decomposed: bool) -> None:
    model, args, kwargs = made(name)
    program = exported_or_skipped(model, args, kwargs, strict=False)
    if decomposed:
        program = program.run_decompositions()
    ours = on_engine(program)
    assert_runs_alike(ours, torchs(program), args, kwargs)
    assert not has_code(ours)
    assert_same_graph(ours.graph, torchs(program).graph)


def test_gradients() -> None:
    torch.manual_seed(0)
    model = Nest()
    inputs = (X, X * 2)
    program = export(copy.deepcopy(model), inputs, strict=False)
    assert_runs_as_eager(on_engine(program), model, inputs, gradients=True)


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("call", CALLS, ids=[str(i) for i in range(len(CALLS))])
def test_calls(call: Any, check: bool, validate: bool) -> None:
    args, kwargs = call
    results: list[Any] = []
    for make in (on_engine, torchs):
        made = make(stateful(), check_guards=check)
        made.validate_inputs = validate
        try:
            results.append(made(*args, **kwargs))
        except Exception as error:
            results.append(type(error))
    if isinstance(results[1], type):
        assert results[0] is results[1]
    else:
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_arguments_by_name_and_by_place() -> None:
    made = on_engine(nest())
    made.validate_inputs = False
    wanted = made(X, X * 2)
    names = made.graph._codegen.pytree_info.orig_args
    for args, kwargs in (((X,), {names[1]: X * 2}), ((), {names[1]: X * 2, names[0]: X})):
        torch.testing.assert_close(made(*args, **kwargs), wanted)
    for args, kwargs in (((X,), {}), ((X, X, X), {}), ((X, X), {"more": X})):
        with pytest.raises(TypeError):
            made(*args, **kwargs)


def test_guards_fail() -> None:
    with pytest.raises(AssertionError, match=r"Guard failed.*\n\nWhile executing"):
        on_engine(nest())(X[:2], X[:2])


def test_hooks_run() -> None:
    made, seen = on_engine(nest()), []
    made.register_forward_hook(lambda *_: seen.append(1))
    made(X, X)
    assert seen == [1]


def test_edits_count_at_once() -> None:
    made = on_engine(nest())
    made(X, X)
    for node in made.graph.nodes:
        if node.target is torch.ops.aten.sigmoid.default:
            node.target = torch.ops.aten.cos.default
    got = made(X, X)
    made.recompile()
    torch.testing.assert_close(got, type(made).forward(made, X, X))


def test_code_is_there_for_who_reads_it() -> None:
    made = on_engine(nest())
    assert made.code == torchs(nest()).code
    torch.testing.assert_close(made(X, X), torchs(nest())(X, X), rtol=0, atol=0)


def test_copies_run_the_code() -> None:
    made = on_engine(nest())
    again = copy.deepcopy(made)
    torch.testing.assert_close(again(X, X), made(X, X), rtol=0, atol=0)
    assert "forward" not in vars(again)


@pytest.mark.deep("a compilation and two exports")
def test_tracers() -> None:
    wanted = torchs(nest())(X, X)
    compiled = torch.compile(on_engine(nest()), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X, X), wanted)
    for strict in (False, True):
        again = export(on_engine(nest()), (X, X), strict=strict)
        torch.testing.assert_close(again.module()(X, X), wanted)


class Calls(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.inner(x, y) * 2


def test_symbolic_tracing() -> None:
    inner = on_engine(nest(), check_guards=False)
    inner.validate_inputs = False  # torch's hook refuses proxies
    traced = symbolic_trace(Calls(inner))
    assert_same_outputs(traced(X, X), torchs(nest())(X, X) * 2)

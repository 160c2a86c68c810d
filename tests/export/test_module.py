"""Uses of the module of a program: run, compile, export, copy, edit, install."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

import fxpress
from fxpress._torch.fx import PENDING
from fxpress.export import module
from tests.support.unflatten_models import Nest
from tests.support.unlifted import assert_module_as_torch, assert_same_module, torchs

_unlift = importlib.import_module("torch.export._unlift")
X = torch.linspace(-1.0, 1.0, 12).view(3, 4)


def nest() -> ExportedProgram:
    torch.manual_seed(0)
    return export(Nest(), (X, X), strict=False)


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("transient", torch.ones(4), persistent=False)

    def forward(self, x: Tensor, *, scale: Tensor | None = None) -> dict[str, Tensor]:
        self.count.add_(1)
        y = self.linear(x) * self.transient
        return {"y": y if scale is None else y * scale, "count": self.count}


def stateful() -> ExportedProgram:
    torch.manual_seed(0)
    rows = Dim("rows", min=3, max=64)
    shapes = {"x": {0: rows}, "scale": None}
    return export(Stateful(), (X,), {"scale": torch.ones(4)}, dynamic_shapes=shapes, strict=False)


# ---- laziness -----------------------------------------------------------------------------------


def is_generated(made: torch.fx.GraphModule) -> bool:
    return PENDING not in vars(type(made))


def test_no_code_is_generated_before_it_is_read() -> None:
    made = module(nest())
    assert not is_generated(made)
    assert made.train.__self__ is made
    assert (made._in_spec, made._out_spec, made.validate_inputs) is not None
    assert [n.name for n in made.graph.nodes]
    assert made.state_dict()
    assert not is_generated(made)
    made(X, X)
    assert is_generated(made)


def test_the_code_is_that_of_the_graph_when_it_is_generated() -> None:
    made = module(nest())
    for node in made.graph.nodes:
        if node.target is torch.ops.aten.sigmoid.default:
            node.target = torch.ops.aten.cos.default
    assert "aten.cos" in made.code
    assert "aten.sigmoid" not in made.code


def test_the_signature_is_that_of_the_generated_function() -> None:
    ours, theirs = module(stateful()), torchs(stateful())
    assert inspect.signature(ours.forward) == inspect.signature(theirs.forward)
    assert ours.forward.__code__.co_code == theirs.forward.__code__.co_code
    assert ours.forward.__code__.co_varnames == theirs.forward.__code__.co_varnames


# ---- independence -------------------------------------------------------------------------------


def test_neither_sees_edits_of_the_other() -> None:
    program = nest()
    made = module(program)
    code, text = made.code, str(program.graph)
    for node in program.graph.nodes:
        node.meta["mine"] = 1
        if node.op == "call_function":
            node.kwargs = {"edited": 1}
    assert not any("mine" in node.meta for node in made.graph.nodes)
    made.recompile()
    assert made.code == code
    program = nest()
    made = module(program)
    for node in list(made.graph.nodes):
        node.meta["mine"] = 1
        if node.op == "call_function":
            node.kwargs = {"edited": 1}
    made.meta["mine"] = 1
    assert str(program.graph) == text
    assert not any("mine" in node.meta for node in program.graph.nodes)
    assert "mine" not in program.graph_module.meta


def test_modules_of_one_program_share_tensors_alone() -> None:
    program = stateful()
    first, second = module(program), module(program)
    assert first.graph is not second.graph
    assert first.count is second.count is program.state_dict["count"]
    assert first.transient is program.constants["transient"]
    first(X, scale=X[0])
    assert second.count == 1


def test_a_module_outlives_its_program() -> None:
    made = module(stateful())
    assert made(X, scale=X[0])["y"].shape == (3, 4)


# ---- calls --------------------------------------------------------------------------------------


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((X,), {"scale": X[0]}),
    ((X[:2],), {"scale": X[0]}),
    ((X[:, :3],), {"scale": X[0]}),
    ((X,), {"scale": None}),
    ((X,), {}),
    ((X, X), {"scale": X[0]}),
    ((X,), {"scale": X[0], "more": X}),
    ((X.double(),), {"scale": X[0]}),
    (([X],), {"scale": X[0]}),
]


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("call", CALLS, ids=[str(i) for i in range(len(CALLS))])
def test_calls(call: Any, check: bool, validate: bool) -> None:
    args, kwargs = call
    results: list[Any] = []
    for make in (module, torchs):
        made = make(stateful(), check_guards=check)
        made.validate_inputs = validate
        try:
            results.append(made(*args, **kwargs))
        except Exception as error:
            results.append((type(error), str(error)))
    if isinstance(results[1], tuple):
        assert results[0] == results[1]
    else:
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


def test_train_and_eval_are_refused_after_a_copy_as_by_torch() -> None:
    ours, theirs = copy.deepcopy(module(nest())), copy.deepcopy(torchs(nest()))
    assert hasattr(ours, "validate_inputs") == hasattr(theirs, "validate_inputs")
    assert ("train" in vars(ours)) == ("train" in vars(theirs))
    assert len(ours._forward_pre_hooks) == len(theirs._forward_pre_hooks)


# ---- copies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("generated", [False, True])
def test_copies(generated: bool) -> None:
    ours, theirs = module(nest()), torchs(nest())
    if generated:
        assert ours.code
    for duplicate in (copy.deepcopy, copy.copy):
        mine, other = duplicate(ours), duplicate(theirs)
        assert mine.code == other.code
        assert type(mine).__mro__[1:] == type(other).__mro__[1:]
        assert vars(mine).keys() == vars(other).keys()
        torch.testing.assert_close(mine(X, X), other(X, X), rtol=0, atol=0)


def test_pickles_are_refused_as_by_torch() -> None:
    errors = []
    for made in (module(nest()), torchs(nest())):
        with pytest.raises((AttributeError, pickle.PicklingError)) as raised:
            pickle.dumps(made)
        errors.append(type(raised.value))
    assert errors[0] is errors[1]


def test_state_can_be_loaded() -> None:
    made, other = module(stateful()), module(stateful())
    assert list(made.state_dict()) == list(torchs(stateful()).state_dict())
    other.linear.weight.data.zero_()
    made.load_state_dict(other.state_dict())
    assert not made.linear.weight.any()


# ---- tools of torch -----------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.deep("two exports and a trace by Dynamo")
def test_modules_can_be_exported_again(strict: bool) -> None:
    rows = Dim("rows", min=3, max=64)
    shapes = {"x": {0: rows}, "scale": None}
    again = [
        export(made, (X,), {"scale": X[0]}, dynamic_shapes=shapes, strict=strict)
        for made in (module(stateful()), torchs(stateful()))
    ]
    assert again[0].graph_module.code == again[1].graph_module.code
    assert str(again[0].graph_signature) == str(again[1].graph_signature)
    assert again[0]._guards_code == again[1]._guards_code
    assert_module_as_torch(again[0], (X,), {"scale": X[0]})


@pytest.mark.deep("a compilation")
def test_modules_can_be_compiled() -> None:
    compiled = torch.compile(module(nest()), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(X, X), torchs(nest())(X, X))
    with pytest.raises(AssertionError, match="Guard failed"):
        module(nest())(X[:2], X[:2])


def test_readable_text() -> None:
    ours, theirs = module(nest()), torchs(nest())
    assert ours.print_readable(print_output=False) == theirs.print_readable(print_output=False)


# ---- installed ----------------------------------------------------------------------------------


def test_the_method_of_programs_takes_ours_while_installed() -> None:
    program = nest()
    theirs = program.module()
    assert is_generated(theirs)
    with fxpress.installed():
        ours = program.module()
        assert not is_generated(ours)
        without = program.module(check_guards=False)
    assert not hasattr(without, "_guards_fn")
    assert_same_module(ours, theirs)
    assert is_generated(program.module())


@pytest.mark.deep("decompositions")
def test_decompositions_are_the_same_while_installed() -> None:
    """Decompositions trace the module of the program."""
    theirs = stateful().run_decompositions()
    with fxpress.installed():
        ours = stateful().run_decompositions()
    assert ours.graph_module.code == theirs.graph_module.code
    assert str(ours.graph_signature) == str(theirs.graph_signature)
    pairs = zip(ours.graph.nodes, theirs.graph.nodes, strict=True)
    assert all(list(a.meta) == list(b.meta) for a, b in pairs)


def test_signatures_are_torchs() -> None:
    ours = fxpress.export._unlift_exported_program_lifted_states
    theirs = _unlift._unlift_exported_program_lifted_states
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    assert inspect.signature(ours).parameters["check_guards"].default is True

"""Capture as a module that runs Dynamo's bytecode around its graph."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest
import torch
from torch._dynamo import functional_export as torch_capture
from torch._subclasses.fake_tensor import FakeTensorMode

import fxpress
from fxpress import UnsupportedError, functional_export
from fxpress._torch.capture import does_more_than_forward
from fxpress._torch.versions import features
from fxpress.functional_export import (
    _dynamo_graph_capture_for_export,
    dynamo_graph_capture_for_export,
)
from tests.capture.test_functional_export import CALLS, Inner, Model, x


class Hooked(Model):
    def __init__(self) -> None:
        super().__init__()
        self.factor = 2
        self.register_forward_hook(lambda module, args, out: {k: out[k] for k in ("y", "n")})

    def forward(self, x: torch.Tensor, *, extra: torch.Tensor | None = None) -> Any:
        return super().forward(x * self.factor, extra=extra)


BYTECODE = {
    **{name: CALLS[name] for name in ("module", "keyword", "function", "method", "nested")},
    "hooks": (Hooked(), (x(),), {}),
    "varargs": (lambda *a, **k: a[0] + k["z"], (x(),), {"z": x()}),
    "where": (torch.ops.aten.where.self, (x() > 2, x(), -x()), {}),
}


@pytest.mark.parametrize("name", BYTECODE)
def test_bytecode_as_by_torch(name: str) -> None:
    call, args, kwargs = BYTECODE[name]
    torch._dynamo.reset()
    ours = dynamo_graph_capture_for_export(call)(*args, **kwargs)
    torch._dynamo.reset()
    theirs = torch_capture.dynamo_graph_capture_for_export(call)(*args, **kwargs)
    assert ours.code == theirs.code
    assert list(ours.meta) == list(theirs.meta)
    torch.testing.assert_close(ours(*args, **kwargs), theirs(*args, **kwargs))
    torch.testing.assert_close(ours(*args, **kwargs), call(*args, **kwargs))


def test_bytecode_of_operators_with_self() -> None:
    """The first argument of most operators is called `self`, like the module."""
    op = torch.ops.aten.sum.dim_IntList
    made = dynamo_graph_capture_for_export(op)(x(), [1])
    torch.testing.assert_close(made(x(), [1]), op(x(), [1]))


@pytest.mark.parametrize("name", ["module", "hooks", "function"])
def test_copies_of_bytecode(name: str) -> None:
    """A copy runs on a separate state."""
    call, args, kwargs = BYTECODE[name]
    made = dynamo_graph_capture_for_export(call)(*args, **kwargs)
    for copied in (copy.deepcopy(made), copy.deepcopy(copy.deepcopy(made))):
        torch.testing.assert_close(copied(*args, **kwargs), made(*args, **kwargs))
        mine, other = dict(made.named_parameters()), dict(copied.named_parameters())
        assert list(mine) == list(other)
        assert not any(mine[key] is other[key] for key in mine)
        if other:
            with torch.no_grad():
                next(iter(other.values())).add_(1)
            assert not torch.equal(copied(*args)["y"], made(*args)["y"])
            assert not torch.equal(mine[next(iter(mine))], next(iter(other.values())))


def test_bytecode_keeps_the_mode() -> None:
    """A module that was traced in eval mode is in eval mode."""
    assert dynamo_graph_capture_for_export(Model().eval())(x()).training is False
    assert dynamo_graph_capture_for_export(Model())(x()).training is True


def test_bytecode_with_hooks_in_threads() -> None:
    """The hooks that were traced are not taken out of the module for a call."""
    made = dynamo_graph_capture_for_export(Hooked())(x())
    expected = made(x())
    hooks = dict(made._forward_hooks)
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda _: made(x()), range(100)))
    for result in results:
        torch.testing.assert_close(result, expected)
    assert dict(made._forward_hooks) == hooks != {}


def test_bytecode_with_hooks_that_watch() -> None:
    """Hooks for all modules run once; traced hooks do not run again."""
    made = dynamo_graph_capture_for_export(Hooked())(x())
    expected = made(x())
    seen = []
    handle = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, out: seen.append(module)
    )
    try:
        torch.testing.assert_close(made(x()), expected)
    finally:
        handle.remove()
    assert seen.count(made) == 1
    assert "forward" not in vars(made)
    assert made._forward_hooks


def test_bytecode_needs_something_to_compute() -> None:
    for way in (functional_export, torch_capture):
        with pytest.raises(AssertionError, match="backend_input"):
            way.dynamo_graph_capture_for_export(lambda a: 3)(x())


def test_bytecode_without_tensors_among_the_inputs() -> None:
    """The generated code needs the arguments, because it returns them."""
    for call, args in ((lambda a: torch.ones(3) * 2, (x(),)), (lambda: torch.ones(3) * 2, ())):
        made = dynamo_graph_capture_for_export(call)(*args)
        torch.testing.assert_close(made(*args), call(*args))
    theirs = torch_capture.dynamo_graph_capture_for_export(lambda a: torch.ones(3) * 2)(x())
    with pytest.raises(NameError):
        theirs(x())


def test_bytecode_of_a_graph_module() -> None:
    """Attributes that a GraphModule needs are not copied from the traced GraphModule."""
    module = _dynamo_graph_capture_for_export(Model())(x())
    before = str(module.graph), dict(module.meta), type(module.graph._codegen)
    made = dynamo_graph_capture_for_export(module)(x())
    torch.testing.assert_close(made(x()), module(x()))
    assert (str(module.graph), dict(module.meta), type(module.graph._codegen)) == before
    module.recompile()


@pytest.mark.parametrize(
    ("name", "value"),
    [("meta", {"w": torch.ones(2)}), ("shape_env", torch.ones(2)), ("shape_env", {"w": x()})],
)
def test_bytecode_reads_attributes_with_names_of_a_graph_module(name: str, value: Any) -> None:
    class Named(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            setattr(self, name, value)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            held = getattr(self, name)
            return x + (held["w"] if isinstance(held, dict) else held).sum()

    for capture in (dynamo_graph_capture_for_export, torch_capture.dynamo_graph_capture_for_export):
        module, before = Named(), dict(value) if isinstance(value, dict) else value
        made = capture(module)(x())
        torch.testing.assert_close(made(x()), module(x()))
        assert "fake_mode" in made.meta
        if capture is dynamo_graph_capture_for_export and name == "meta":
            assert module.meta == before  # torch writes into it


@pytest.mark.parametrize(("name", "value"), [("meta", torch.ones(2)), ("_graph", 1)])
def test_bytecode_with_names_that_are_needed(name: str, value: Any) -> None:
    module = Model()
    setattr(module, name, value)
    with pytest.raises(UnsupportedError, match=name):
        dynamo_graph_capture_for_export(module)(x())


def test_bytecode_of_operators_with_keywords() -> None:
    with pytest.raises(UnsupportedError, match="from"):
        dynamo_graph_capture_for_export(torch.ops.aten.uniform.default)


def test_bytecode_in_strict_export() -> None:
    programs = []
    with torch._export.config.patch(use_legacy_dynamo_graph_capture=False):
        with fxpress.installed():
            programs.append(torch.export.export(Model(), (x(),), strict=True))
        torch.manual_seed(0)
        programs.append(torch.export.export(Model(), (x(),), strict=True))
    assert str(programs[0]) == str(programs[1])


def test_bytecode_with_tensors_as_attributes() -> None:
    for way in (functional_export, torch_capture):
        with (
            torch._dynamo.config.patch(install_free_tensors=True),
            pytest.raises(AssertionError, match="install_free_tensors"),
        ):
            way.dynamo_graph_capture_for_export(Model())(x())


def test_processor_of_another_module() -> None:
    first, second = (dynamo_graph_capture_for_export(Model())(x()) for _ in range(2))
    processor = first._dynamo_bytecode_flatten.input_processor
    processor.root = second
    with pytest.raises(AssertionError, match="another module"):
        first(x())


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("_codegen", torch.fx.graph.CodeGen()), ("dynamo_bytecode_flatten", lambda *inputs: inputs)],
    ids=["another code generator", "another function"],
)
def test_processor_of_a_module_with_other_code(attribute: str, value: Any) -> None:
    for way in (functional_export, torch_capture):
        made = way.dynamo_graph_capture_for_export(Model())(x())
        flatten = made._dynamo_bytecode_flatten
        setattr(made.graph if attribute == "_codegen" else made.graph._codegen, attribute, value)
        with pytest.raises(AssertionError, match=r"CodeGen|input_processor"):
            flatten(x())


class Branches(torch.nn.Module):
    """Has a child with the name that Dynamo gives the first branch."""

    def __init__(self) -> None:
        super().__init__()
        self.cond_true_0 = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.cond_true_0(x)
        return torch.cond(made.sum() > 0, torch.sin, torch.cos, (made,))


def test_children_with_names_of_dynamos() -> None:
    for way in (functional_export, torch_capture):
        with pytest.raises(AssertionError, match="attributes"):
            way.dynamo_graph_capture_for_export(Branches())(x())


@pytest.mark.parametrize("value", [3, torch.nn.Linear(4, 4)], ids=["number", "child"])
@pytest.mark.parametrize("name", ["_dynamo_bytecode_flatten", "_dynamo_bytecode_unflatten"])
def test_attributes_with_names_of_what_runs_bytecode(name: str, value: Any) -> None:
    for way in (functional_export, torch_capture):
        module = Model()
        setattr(module, name, value)
        with pytest.raises(
            AssertionError, match=f"already has (an attribute )?{name}|attribute {name} already"
        ):
            way.dynamo_graph_capture_for_export(module)(x())


def test_modules_with_hooks_that_are_called_otherwise() -> None:
    for way in (functional_export, torch_capture):
        module = Hooked()
        module._wrapped_call = 3
        with pytest.raises(AssertionError):
            way.dynamo_graph_capture_for_export(module)(x())


def test_a_forward_of_ones_own_beside_traced_hooks() -> None:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, out: None)
    try:
        for way in (functional_export, torch_capture):
            made = way.dynamo_graph_capture_for_export(Hooked())(x())
            made.forward = lambda x: x
            with pytest.raises(AssertionError, match="forward"):
                made(x())
    finally:
        handle.remove()


def test_bytecode_that_never_calls_its_graph() -> None:
    for way in (functional_export, torch_capture):
        made = way.dynamo_graph_capture_for_export(Model())(x())
        made._dynamo_bytecode_flatten.out = mock.Mock()
        with pytest.raises(RuntimeError):
            made(x())


def test_interpreters_with_fake_inputs_of_another_mode() -> None:
    """The module's own tensors come from the bytecode, and are real."""
    results = []
    for way in (functional_export, torch_capture):
        made = way.dynamo_graph_capture_for_export(Inner())(x())
        with FakeTensorMode() as mode:
            result = torch.fx.Interpreter(made).run(mode.from_tensor(x()))
        assert mode.allow_non_fake_inputs
        results.append((type(result), result.shape, result.dtype, result.requires_grad))
    assert results[0] == results[1]


def test_outputs_before_inputs() -> None:
    """Newer releases of torch raise an AssertionError."""
    made = [
        way.dynamo_graph_capture_for_export(Model())(x())
        for way in (functional_export, torch_capture)
    ]
    outputs = made[0](x())
    flat = tuple(torch.utils._pytree.tree_leaves(outputs))
    for module in made:
        if features.outputs_need_inputs:
            with pytest.raises(AssertionError, match="process_outputs called before"):
                module.graph.process_outputs(flat)
        else:
            with pytest.raises(TypeError):
                module.graph.process_outputs(flat)


def test_tracing_is_asked_about_as_by_torch() -> None:
    """A pause of tracing turns it off for calls of modules, in newer releases of torch."""
    found = []

    class Asking(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found.append(does_more_than_forward(self))
            state = torch._C._get_tracing_state()
            torch._C._set_tracing_state(None)
            found.append(does_more_than_forward(self))
            torch._C._set_tracing_state(state)
            return x + 1

    torch.jit.trace(Asking(), (torch.ones(2),), check_trace=False)
    assert found == [True, False]

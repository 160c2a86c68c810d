"""Unflattened modules for the engine's tests, and ways to run them with torch and with ours."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from fxpress._graphs import engine as native_engine

component: Any = importlib.import_module("torch.export.unflatten")  # the name is a function, too

TORCH_FORWARDS = {
    cls: vars(cls)["forward"]
    for cls in (
        component.InterpreterModule,
        component.UnflattenedModule,
        component.InterpreterModuleDispatcher,
    )
}


class _Ours:
    """Replaces `torch.fx.Interpreter` in torch's forward methods: `run` calls the engine."""

    def __init__(self, module: nn.Module, *, graph: torch.fx.Graph) -> None:
        self.module, self.graph = module, graph

    def run(self, *args: Any, enable_io_processing: bool) -> Any:
        assert not enable_io_processing
        return native_engine.run(self.module, self.graph, args)


class _Torch:
    """The module `torch` for torch's forward methods, with our Interpreter."""

    class fx:
        Interpreter = _Ours

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _rebound(function: Callable[..., Any]) -> Any:
    """The function's own code, with `torch.fx.Interpreter` replaced."""
    namespace = {**function.__globals__, "torch": _Torch()}
    made = types.FunctionType(
        function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__ = function.__kwdefaults__
    return made


OUR_FORWARDS = {cls: _rebound(function) for cls, function in TORCH_FORWARDS.items()}
native_engine.register_forward(
    OUR_FORWARDS[component.InterpreterModule], dispatches=False, counts=False
)
native_engine.register_forward(
    OUR_FORWARDS[component.InterpreterModuleDispatcher], dispatches=True, counts=False
)


@contextmanager
def engine() -> Iterator[None]:
    """Let torch's unflattened modules run with our engine."""
    for cls, function in OUR_FORWARDS.items():
        cls.forward = function
    try:
        yield
    finally:
        for cls, function in TORCH_FORWARDS.items():
            cls.forward = function


def with_engine(call: Callable[[], Any]) -> Any:
    with engine():
        return call()


def unflattened(
    model: nn.Module, *args: Any, kwargs: dict[str, Any] | None = None, **options: Any
) -> Any:
    preserve = options.pop("preserve", ())
    program = torch.export.export(
        model, args, kwargs, strict=False, preserve_module_call_signature=tuple(preserve), **options
    )
    return component.unflatten(program)


def flat_inputs(module: Any, *args: Any, **kwargs: Any) -> list[Any]:
    return module.process_forward_inputs(*args, **kwargs)


def by_torch(module: nn.Module, graph: torch.fx.Graph, *args: Any) -> Any:
    interpreter = torch.fx.Interpreter(module, graph=graph)
    return interpreter.run(*args, enable_io_processing=False)


def info(module: Any) -> dict[str, Any]:
    found = native_engine.plan_info(module.graph)
    assert found is not None
    return found


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Tower(nn.Module):
    def __init__(self, depth: int = 3, width: int = 8) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def tower(depth: int = 3) -> tuple[Tower, Any, torch.Tensor]:
    torch.manual_seed(0)
    model, x = Tower(depth), torch.randn(2, 8)
    return model, unflattened(model, x), x


def interpreter_module(graph: torch.fx.Graph, **members: Any) -> Any:
    """Return an InterpreterModule that is freed with its owner; torch's are never freed."""
    module = component.InterpreterModule(graph)
    for name, value in members.items():
        setattr(module, name, value)
    vars(module)["graph_module"] = "finalized"
    module.arg_names = [n.target for n in graph.nodes if n.op == "placeholder"]
    return module


def nested(
    linear: Any = torch.ops.aten.linear.default,
    relu: Any = torch.ops.aten.relu.default,
    mul: Any = torch.ops.aten.mul.Tensor,
) -> tuple[Any, torch.Tensor]:
    """A module with another one in it, both with weights, and an input."""
    torch.manual_seed(0)
    graph = torch.fx.Graph()
    arguments = (graph.placeholder("x"), graph.get_attr("weight"))
    graph.output(graph.call_function(linear, arguments))
    inner = interpreter_module(graph, weight=nn.Parameter(torch.randn(4, 4)))
    graph = torch.fx.Graph()
    x, scale = graph.placeholder("x"), graph.get_attr("scale")
    y = graph.call_module("inner", (graph.call_function(relu, (x,)),))
    graph.output(graph.call_function(mul, (y, scale)))
    return interpreter_module(graph, inner=inner, scale=torch.ones(4)), torch.randn(2, 4)


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal values, types, dtypes, strides and autograd state, in equal structures."""
    assert type(ours) is type(theirs), (type(ours), type(theirs))
    if isinstance(ours, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.device == theirs.device
        assert ours.layout == theirs.layout
        if ours.layout == torch.strided:
            assert ours.stride() == theirs.stride()
        assert ours.requires_grad == theirs.requires_grad
        assert type(ours.grad_fn) is type(theirs.grad_fn)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for key in ours:
            assert_same(ours[key], theirs[key])
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(ours, slice):
        assert_same((ours.start, ours.stop, ours.step), (theirs.start, theirs.stop, theirs.step))
    elif isinstance(ours, float) and ours != ours:  # NaN
        assert theirs != theirs
    else:
        assert ours == theirs


def has_versions_left(cls: type) -> bool:
    """Return whether CPython still gives the class new versions: since 3.13, at most a thousand.

    Each change of `nn.Module` by a test uses one. Without versions, a plan is not improved later.
    """
    if sys.version_info < (3, 13):
        return True
    testcapi = pytest.importorskip("_testcapi")  # Debian's Python has it in a separate package
    _ = cls.__call__  # an attribute access gives a class its version
    return bool(testcapi.type_get_version(cls))

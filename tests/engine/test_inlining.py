"""Calls of submodules in hand-built graphs: arguments, results, and when values are freed."""

from __future__ import annotations

import gc
import operator
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fxpress._graphs import engine as native_engine
from tests.support.engine import assert_same, by_torch, engine, info, interpreter_module

aten = torch.ops.aten
Body = Callable[..., Any]


def inner_module(names: str, body: Body) -> Any:
    """A module whose graph's output is body(graph, *placeholders)."""
    graph = torch.fx.Graph()
    graph.output(body(graph, *[graph.placeholder(name) for name in names.split()]))
    return interpreter_module(graph)


def outer_module(inner: Any, call: Body) -> Any:
    """A module whose calls of `inner` are defined by call(graph, x); it adds one to each result."""
    graph = torch.fx.Graph()
    graph.output(call(graph, graph.placeholder("x")))
    return interpreter_module(graph, inner=inner)


def pair(graph: torch.fx.Graph, a: Any, b: Any) -> Any:
    total = graph.call_function(aten.add.Tensor, (a, b))
    return (total, graph.call_function(aten.mul.Tensor, (a, b)))


def total(graph: torch.fx.Graph, a: Any, b: Any) -> Any:
    return graph.call_function(aten.add.Tensor, (a, b))


def items(graph: torch.fx.Graph, value: Any, *keys: Any) -> Any:
    return tuple(graph.call_function(operator.getitem, (value, key)) for key in keys)


def call(*args: Any, **kwargs: Any) -> Body:
    """Call `inner`; "x" among the arguments is replaced by the input."""

    def body(graph: torch.fx.Graph, x: Any) -> Any:
        replace = lambda v: x if isinstance(v, str) and v == "x" else v  # noqa: E731
        return graph.call_module(
            "inner", tuple(map(replace, args)), {k: replace(v) for k, v in kwargs.items()}
        )

    return body


CASES: dict[str, tuple[str, Body, Body, bool]] = {
    "two arguments": ("a b", total, call("x", "x"), True),
    "a constant": ("a b", total, call("x", 2.5), True),
    "keywords": ("a b", total, call("x", b="x"), True),
    "only keywords": ("a b", total, call(b=1, a="x"), True),
    "a tuple": ("a b", pair, lambda g, x: items(g, call("x", 3)(g, x), 0, -1), True),
    "a tuple as a whole": ("a b", pair, lambda g, x: [call("x", 3)(g, x), x], True),
    "an argument as result": ("a b", lambda g, a, b: b, call(1, "x"), True),
    "a constant as result": ("a", lambda g, a: 7, call("x"), True),
    "nothing as result": ("a", lambda g, a: None, call("x"), True),
    "an unused argument": ("a b", lambda g, a, b: total(g, a, a), call("x", "x"), True),
    "an unused result": ("a b", pair, lambda g, x: (call("x", 1)(g, x), x)[1], True),
    "a dict": (
        "a b",
        lambda g, a, b: {"k": [total(g, a, b), None], "n": b},
        lambda g, x: items(g, call("x", 4)(g, x), "k", "n"),
        True,
    ),
    "a list of nodes": ("a", lambda g, a: items(g, a, 0), lambda g, x: call([x, x])(g, x), False),
    "a missing default": ("a b", total, call("x"), False),
    "too many": ("a", lambda g, a: a, call("x", "x"), False),
    "an unknown keyword": ("a b", total, call("x", c="x"), False),
    "a star": ("*a", lambda g, a: a, call("x", "x"), False),
}


@pytest.mark.parametrize("name", CASES)
def test_calls(name: str) -> None:
    names, body, caller, inlined = CASES[name]
    module = outer_module(inner_module(names, body), caller)
    x = torch.randn(3)
    theirs, error = None, None
    try:
        theirs = by_torch(module, module.graph, x)
    except Exception as raised:
        error = raised
    if error is not None:
        with engine(), pytest.raises(type(error)) as caught:
            module(x)
        assert str(caught.value) == str(error)
        return
    with engine():
        for hooked in (False, True, False):
            handles = [module.inner.register_forward_hook(lambda *a: None)] if hooked else []
            assert_same(module(x), theirs)
            assert info(module)["inlined"] == inlined
            for handle in handles:
                handle.remove()


def test_values_die_within_inlined_modules_and_behind_hooks() -> None:
    alive: list[int] = []
    seen: list[Any] = []

    def watch(x: torch.Tensor) -> torch.Tensor:
        gc.collect()
        alive.append(sum(r() is not None for r in seen))
        y = x + 1
        seen.append(weakref.ref(y))
        return y

    def body(graph: torch.fx.Graph, a: Any) -> Any:
        for _ in range(3):
            a = graph.call_function(watch, (a,))
        return a

    def caller(graph: torch.fx.Graph, x: Any) -> Any:
        for _ in range(3):
            x = graph.call_module("inner", (x,))
        return x

    module = outer_module(inner_module("a", body), caller)
    with engine():
        module(torch.randn(2))
        assert max(alive) == 1
        alive.clear()
        seen.clear()
        module.inner.register_forward_hook(lambda *a: None)
        module(torch.randn(2))
    assert max(alive) <= 3  # the frames of Python hold the module's argument while it runs


def test_a_list_of_arguments_is_emptied() -> None:
    seen: list[bool] = []
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(aten.neg.default, (x,))
    z = graph.call_function(lambda v: seen.append(alive() is None) or v, (y,))
    graph.output(z)
    args = [torch.randn(3)]
    alive = weakref.ref(args[0])
    native_engine.run(nn.Module(), graph, args)
    assert args == []
    assert seen == [True]


def test_patched_overload_call(monkeypatch: pytest.MonkeyPatch) -> None:
    module = outer_module(inner_module("a b", total), call("x", 2))
    x = torch.randn(3)
    calls: list[Any] = []
    original = torch._ops.OpOverload.__call__

    def spy(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return original(self, *args, **kwargs)

    with engine():
        expected = module(x)
        assert info(module)["boxed"] == 1
        with monkeypatch.context() as patch:
            patch.setattr(torch._ops.OpOverload, "__call__", spy)
            assert_same(module(x), expected)
        assert calls == [aten.add.Tensor]
        assert_same(module(x), expected)
        assert info(module)["boxed"] == 1
    assert calls == [aten.add.Tensor]


def test_shared_submodule() -> None:
    def caller(graph: torch.fx.Graph, x: Any) -> Any:
        for _ in range(4):
            x = graph.call_module("inner", (x, 2))
        return x

    module = outer_module(inner_module("a b", total), caller)
    x = torch.randn(3)
    with engine():
        assert torch.equal(module(x), x + 2 + 2 + 2 + 2)
        assert info(module)["inlined"] == 4


def test_module_that_calls_itself() -> None:
    graph = torch.fx.Graph()
    graph.output(graph.call_module("again", (graph.placeholder("x"),)))
    module = interpreter_module(graph)
    vars(module)["_modules"]["again"] = module
    with engine(), pytest.raises(RecursionError):
        module(torch.randn(2))


def test_doubling_modules_do_not_double_the_plan_forever() -> None:
    def twice(inner: Any) -> Any:
        graph = torch.fx.Graph()
        x = graph.placeholder("x")
        for _ in range(2):
            x = graph.call_module("inner", (x,))
        graph.output(x)
        return interpreter_module(graph, inner=inner)

    module = inner_module("a", lambda g, a: g.call_function(aten.neg.default, (a,)))
    for _ in range(12):
        module = twice(module)
    x = torch.randn(2)
    with engine():
        assert torch.equal(module(x), x)


def test_python_operator_that_fails_within_a_stretch() -> None:
    @torch.library.custom_op("fxpress_test::fails", mutates_args=())
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise KeyError("inside")

    def body(graph: torch.fx.Graph, a: Any) -> Any:
        b = graph.call_function(aten.neg.default, (a,))
        return graph.call_function(torch.ops.fxpress_test.fails.default, (b,))

    module = outer_module(inner_module("a", body), call("x"))
    x = torch.randn(3)
    with pytest.raises(RuntimeError) as theirs:
        by_torch(module, module.graph, x)
    with engine(), pytest.raises(RuntimeError) as ours:
        module(x)
    assert str(ours.value) == str(theirs.value)
    assert type(ours.value.__cause__) is KeyError


def test_python_operator_that_adds_a_hook() -> None:
    seen: list[str] = []
    handles: list[Any] = []

    @torch.library.custom_op("fxpress_test::hooks", mutates_args=())
    def hooks(x: torch.Tensor) -> torch.Tensor:
        handles.append(module.inner.register_forward_hook(lambda *a: seen.append("hook")))
        return x.clone()

    def caller(graph: torch.fx.Graph, x: Any) -> Any:
        y = graph.call_function(torch.ops.fxpress_test.hooks.default, (x,))
        return graph.call_module("inner", (y, 1))

    module = outer_module(inner_module("a b", total), caller)
    with engine():
        module(torch.randn(3))
    assert seen == ["hook"]

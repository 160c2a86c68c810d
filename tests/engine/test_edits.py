"""Edits of graphs, modules, hooks and weights act at the next call, and hooks within the call."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import nn

from fxpress._graphs import engine as native_engine
from tests.support.engine import (
    assert_same,
    by_torch,
    engine,
    has_versions_left,
    info,
    tower,
    unflattened,
)


def same_as_torch(module: Any, *args: Any) -> Any:
    theirs = module(*args)
    with engine():
        ours = module(*args)
    assert_same(ours, theirs)
    return ours


def linear_of(module: Any, index: int = 0) -> Any:
    return getattr(module.blocks, str(index)).up


def test_weights_are_read_at_each_run() -> None:
    _, module, x = tower()
    first = same_as_torch(module, x)
    linear = linear_of(module)
    linear.weight = nn.Parameter(linear.weight * 2)
    second = same_as_torch(module, x)
    assert not torch.equal(first, second)
    with torch.no_grad():
        linear.weight.zero_()
    same_as_torch(module, x)
    linear.weight.data = torch.ones_like(linear.weight)
    same_as_torch(module, x)
    module.load_state_dict({k: v * 0.5 for k, v in module.state_dict().items()})
    same_as_torch(module, x)
    vars(linear)["weight"] = torch.full_like(linear.weight, 3.0)  # ahead of the parameter
    same_as_torch(module, x)
    del vars(linear)["weight"]
    same_as_torch(module, x)


def test_missing_weight() -> None:
    _, module, x = tower()
    with engine():
        module(x)
        del linear_of(module)._parameters["weight"]
        with pytest.raises(RuntimeError, match="nonexistent target weight") as ours:
            module(x)
    with pytest.raises(RuntimeError) as theirs:
        module(x)
    assert str(ours.value) == str(theirs.value)


def test_functional_call() -> None:
    _, module, x = tower()
    with engine():
        before = module(x)
        weights = {k: v.detach() * 2 for k, v in module.named_parameters()}
        ours = torch.func.functional_call(module, weights, (x,))
        assert_same(module(x), before)
    assert_same(ours, torch.func.functional_call(module, weights, (x,)))


def test_parametrize() -> None:
    class Twice(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    _, module, x = tower()
    with engine():
        before = module(x)
        linear = linear_of(module)
        nn.utils.parametrize.register_parametrization(linear, "weight", Twice())
        ours = module(x)
    theirs = module(x)
    assert_same(ours, theirs)
    assert not torch.equal(before, ours)
    with engine():
        nn.utils.parametrize.remove_parametrizations(linear, "weight", leave_parametrized=False)
        assert_same(module(x), before)


HOOKS = {
    "forward": lambda m, f: m.register_forward_hook(lambda *a: f()),
    "forward_pre": lambda m, f: m.register_forward_pre_hook(lambda *a: f()),
    "backward": lambda m, f: m.register_full_backward_hook(lambda *a: f()),
    "backward_pre": lambda m, f: m.register_full_backward_pre_hook(lambda *a: f()),
    "global_forward": lambda m, f: nn.modules.module.register_module_forward_hook(
        lambda mod, *a: f() if mod is m else None
    ),
    "global_forward_pre": lambda m, f: nn.modules.module.register_module_forward_pre_hook(
        lambda mod, *a: f() if mod is m else None
    ),
    "global_backward": lambda m, f: nn.modules.module.register_module_full_backward_hook(
        lambda mod, *a: f() if mod is m else None
    ),
    "global_backward_pre": lambda m, f: nn.modules.module.register_module_full_backward_pre_hook(
        lambda mod, *a: f() if mod is m else None
    ),
}


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_come_and_go(kind: str) -> None:
    _, module, x = tower()
    seen: list[str] = []
    x.requires_grad_()
    with engine():
        before = module(x)
        for _ in range(2):
            handle = HOOKS[kind](linear_of(module), lambda: seen.append(kind))
            out = module(x)
            out.sum().backward()
            assert seen == [kind]
            torch.testing.assert_close(out, before)
            handle.remove()
            seen.clear()
            module(x).sum().backward()
            assert seen == []


def test_hook_changes_the_result() -> None:
    _, module, x = tower()
    same_as_torch(module, x)
    handle = linear_of(module).register_forward_hook(lambda m, a, out: out * 3)
    same_as_torch(module, x)
    inner = module.blocks.get_submodule("1").register_forward_hook(lambda m, a, out: out - 1)
    same_as_torch(module, x)
    handle.remove()
    inner.remove()
    same_as_torch(module, x)


def test_hooks_of_all_modules_see_the_same_calls() -> None:
    _, module, x = tower()
    calls: list[Any] = []
    for name, child in module.named_modules():
        if name:
            child.register_forward_hook(lambda m, a, out, name=name: calls.append((name, out)))
    module(x)
    theirs = list(calls)
    calls.clear()
    with engine():
        module(x)
    assert [n for n, _ in calls] == [n for n, _ in theirs]
    assert_same([o for _, o in calls], [o for _, o in theirs])


def test_hook_added_during_a_run() -> None:
    _, module, x = tower()
    seen: list[str] = []
    first, later = linear_of(module, 0), linear_of(module, 2)

    def add(*_: object) -> None:
        handles.append(later.register_forward_hook(lambda *a: seen.append("later")))

    handles = [first.register_forward_hook(add)]
    with engine():
        module(x)
        assert seen == ["later"]
        for handle in handles:
            handle.remove()
        module(x)
    assert seen == ["later"]


def test_hook_removed_during_a_run() -> None:
    _, module, x = tower()
    seen: list[str] = []
    handle = linear_of(module, 2).register_forward_hook(lambda *a: seen.append("never"))
    linear_of(module, 0).register_forward_hook(lambda *a: handle.remove())
    with engine():
        module(x)
    assert seen == []


def test_weights_changed_during_a_run() -> None:
    model, module, x = tower()
    later = linear_of(module, 2)
    old = later.weight

    def swap(*_: object) -> None:
        later.weight = nn.Parameter(torch.zeros_like(old))

    linear_of(module, 0).register_forward_hook(swap)
    theirs = module(x)
    later.weight = old
    with engine():
        module(x)
        later.weight = old
        assert_same(module(x), theirs)


def test_patched_forward_of_an_instance_and_of_the_class() -> None:
    _, module, x = tower()
    linear = linear_of(module)
    with engine():
        before = module(x)
        original = linear.forward
        linear.forward = lambda *a: original(*a) + 1
        patched = module(x)
        assert not torch.equal(before, patched)
        del linear.forward
        assert_same(module(x), before)

        calls: list[nn.Module] = []
        cls = type(linear)
        forward = cls.forward

        def spy(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            calls.append(self)
            return forward(self, *args, **kwargs)

        cls.forward = spy
        assert_same(module(x), before)
        assert linear in calls
        cls.forward = forward
        calls.clear()
        assert_same(module(x), before)
        assert not calls


@pytest.mark.parametrize("name", ["__call__", "_call_impl"])
def test_patched_module_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, module, x = tower()
    calls: list[nn.Module] = []
    original = getattr(nn.Module, name)

    def spy(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return original(self, *args, **kwargs)

    with engine():
        before = module(x)
        with monkeypatch.context() as patch:
            patch.setattr(nn.Module, name, spy)
            assert_same(module(x), before)
        assert len(calls) == 1 + info(module)["inlined"]
        calls.clear()
        assert_same(module(x), before)
        assert not calls
        assert info(module)["inlined"] > 0


def test_first_run_with_a_patch_inlines_later(monkeypatch: pytest.MonkeyPatch) -> None:
    _, module, x = tower()
    with engine():
        with monkeypatch.context() as patch:
            original = nn.Module.__getattr__
            patch.setattr(nn.Module, "__getattr__", lambda self, name: original(self, name))
            before = module(x)
        assert_same(module(x), before)
        assert info(module)["inlined"] > 10 or not has_versions_left(type(module.blocks))


def test_compiled_call_impl_and_class() -> None:
    _, module, x = tower()
    linear = linear_of(module)
    with engine():
        before = module(x)
        linear._compiled_call_impl = lambda *a: linear.forward(*a) * 2
        assert not torch.equal(module(x), before)
        linear._compiled_call_impl = None
        assert_same(module(x), before)

        class Other(type(linear)):
            def forward(self, *args: Any) -> Any:
                return super().forward(*args) * 2

        cls = type(linear)
        linear.__class__ = Other
        assert not torch.equal(module(x), before)
        linear.__class__ = cls
        assert_same(module(x), before)


def test_submodule_replaced() -> None:
    _, module, x = tower()
    with engine():
        before = module(x)
        block = module.blocks.get_submodule("0")
        old, block.up = block.up, nn.Linear(8, 16)
        changed = module(x)
        assert not torch.equal(changed, before)
        block.up = old
        assert_same(module(x), before)


def test_run_with_interpreter_switched_off() -> None:
    _, module, x = tower()
    with engine():
        before = module(x)
        for child in module.modules():
            if hasattr(child, "_run_with_interpreter"):
                child._run_with_interpreter = False
        torch.testing.assert_close(module(x), before)


# ---- edits of graphs ----


def call_nodes(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [n for n in graph.nodes if n.op == "call_function"]


def root_graph() -> tuple[nn.Module, torch.fx.Graph, torch.Tensor]:
    root = nn.Module()
    root.w = nn.Parameter(torch.randn(3))
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    w = graph.get_attr("w")
    y = graph.call_function(torch.ops.aten.add.Tensor, (x, w))
    z = graph.call_function(torch.ops.aten.mul.Tensor, (y, 3))
    graph.output((z, y))
    graph.owning_module = root
    return root, graph, torch.randn(3)


def edit_args(graph: torch.fx.Graph) -> None:
    call_nodes(graph)[1].args = (call_nodes(graph)[0], 5)


def edit_kwargs(graph: torch.fx.Graph) -> None:
    call_nodes(graph)[0].kwargs = {"alpha": 4}


def edit_target(graph: torch.fx.Graph) -> None:
    call_nodes(graph)[1].target = torch.ops.aten.sub.Tensor


def edit_op(graph: torch.fx.Graph) -> None:
    node = call_nodes(graph)[1]
    node.op, node.target, node.args = "call_method", "neg", (node.args[0],)


def insert(graph: torch.fx.Graph) -> None:
    node = call_nodes(graph)[0]
    with graph.inserting_after(node):
        made = graph.call_function(torch.ops.aten.neg.default, (node,))
    node.replace_all_uses_with(made, delete_user_cb=lambda user: user is not made)


def erase(graph: torch.fx.Graph) -> None:
    first, second = call_nodes(graph)
    second.replace_all_uses_with(first)
    graph.erase_node(second)


def reorder(graph: torch.fx.Graph) -> None:
    nodes = list(graph.nodes)
    nodes[0].append(graph.call_function(operator.neg, (nodes[0],)))
    nodes[1].append(next(iter(graph.nodes)).next)


def replace_input(graph: torch.fx.Graph) -> None:
    first, second = call_nodes(graph)
    second.replace_input_with(first, next(iter(graph.nodes)))


EDITS = [edit_args, edit_kwargs, edit_target, edit_op, insert, erase, reorder, replace_input]


@pytest.mark.parametrize("edit", EDITS)
def test_edited_graph(edit: Any) -> None:
    root, graph, x = root_graph()
    for _ in range(2):
        assert_same(native_engine.run(root, graph, (x,)), by_torch(root, graph, x))
    edit(graph)
    for _ in range(2):
        assert_same(native_engine.run(root, graph, (x,)), by_torch(root, graph, x))


@pytest.mark.parametrize("edit", [edit_args, insert])
def test_edited_graph_of_an_inlined_module(edit: Any) -> None:
    class Inner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1) * 3

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) - 1

    x = torch.randn(3)
    module = unflattened(Outer(), x)
    before = same_as_torch(module, x)
    edit(module.inner.graph)
    after = same_as_torch(module, x)
    assert not torch.equal(before, after)
    with engine():
        for _ in range(2):
            assert_same(module(x), after)
            assert info(module)["inlined"] == 1
        assert not info(module)["stale"]


def test_replaced_graph() -> None:
    root, graph, x = root_graph()
    first = native_engine.run(root, graph, (x,))
    other, fresh, _ = root_graph()
    edit_args(fresh)
    assert_same(native_engine.run(root, fresh, (x,)), by_torch(root, fresh, x))
    assert_same(native_engine.run(root, graph, (x,)), first)
    assert_same(native_engine.run(other, graph, (x,)), by_torch(other, graph, x))  # another module
    assert_same(native_engine.run(root, graph, (x,)), first)

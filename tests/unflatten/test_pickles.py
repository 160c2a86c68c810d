"""Copies and pickles keep bodies of operators, and objects with two positions."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.export import unflatten as torch_unflatten
from torch.testing._internal.two_tensor import TwoTensor

from tests.support.unflatten_cases import exported, ours_of
from tests.support.unflatten_compare import assert_runs_as_eager, assert_same_outputs
from tests.support.unflatten_models import Counter, Nest, Repeated, Shared


def saved(value: Any) -> Any:
    stream = io.BytesIO()
    torch.save(value, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


WAYS = pytest.mark.parametrize("way", [pickled, saved, copy.deepcopy], ids=lambda w: w.__name__)


# ---- bodies of operators ------------------------------------------------------------------------


class Branches(nn.Module):
    """A condition in a condition, below a module, with a weight that the branches share."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        def positive(x: Tensor) -> Tensor:
            return torch.cond(x.mean() > 1, lambda x: self.linear(x), lambda x: x * 2, (x,))

        return torch.cond(x.sum() > 0, positive, lambda x: x - 1, (x,))


class Scans(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return carry + x, carry * x

        return scan(step, torch.zeros(3), x)[1]  # type: ignore[no-any-return]


class NoGrad(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.linear(x) * 2
        return self.linear(y)


@pytest.mark.slow("exports control flow for each case")
@WAYS
@pytest.mark.parametrize("build", [Branches, Scans, NoGrad], ids=lambda b: b.__name__)
def test_bodies_run_afterwards(build: type[nn.Module], way: Callable[[Any], Any]) -> None:
    model = nn.Sequential(build(), build())
    x = torch.randn(2, 3)
    module = ours_of(model, x)
    module(x)
    again = way(module)
    for value in (x, -x.abs() - 1, x.abs() + 2):
        assert_same_outputs(again(value), model(value))
    names = [[n for n, _ in m.named_modules(remove_duplicate=False)] for m in (again, module)]
    assert names[0] == names[1]
    twice = way(again)
    assert_runs_as_eager(twice, model, (x,))
    assert_same_outputs(module(x), model(x))
    again.train()


@WAYS
def test_a_module_with_bodies_alone(way: Callable[[Any], Any]) -> None:
    model, x = nn.Sequential(Branches()), torch.randn(2, 3).abs() + 2
    child = ours_of(model, x).get_submodule("0")
    again = way(child)
    assert_same_outputs(again(x), child(x))


@pytest.mark.slow("exports control flow for each case")
def test_a_body_that_two_calls_share() -> None:
    model, x = Repeated(Branches()), torch.randn(2, 3).abs() + 2
    module = ours_of(model, x)
    again = pickled(module)
    groups = [
        [id(m) for _, m in each.named_modules(remove_duplicate=False)] for each in (module, again)
    ]
    assert [groups[0].index(i) for i in groups[0]] == [groups[1].index(i) for i in groups[1]]
    assert_runs_as_eager(again, model, (x,))


# ---- one thing in two places --------------------------------------------------------------------


@WAYS
def test_weights_tied_to_a_module_outside(way: Callable[[Any], Any]) -> None:
    model, args = Nest(), (torch.randn(3, 4), torch.randn(3, 4))
    inner = ours_of(model, *args)
    head = nn.Linear(4, 4)
    head.weight = inner.first.linear.weight
    head.register_buffer("shift", inner.second.leaf.shift)
    again = way(nn.ModuleList([inner, head]))
    assert again[1].weight is again[0].first.linear.weight
    assert again[1].shift is again[0].second.leaf.shift
    assert len(list(again.parameters())) == len({id(p) for p in again.parameters()})
    assert_runs_as_eager(again[0], model, args, gradients=True)
    assert again[1].weight.grad is again[0].first.linear.weight.grad


@WAYS
@pytest.mark.parametrize("order", [1, -1], ids=["outer first", "inner first"])
def test_modules_and_tensors_beside_the_module(way: Callable[[Any], Any], order: int) -> None:
    model, args = Nest(), (torch.randn(3, 4), torch.randn(3, 4))
    module = ours_of(model, *args)
    module.note = note = {"a": 1}
    held = [module, module.first, module.first.leaf, module.first.linear.weight, note][::order]
    top, first, leaf, weight, noted = way(held)[::order]
    assert first is top.first
    assert leaf is first.leaf
    assert weight is first.linear.weight
    assert noted is top.note
    assert_runs_as_eager(top, model, args)
    assert top.meta["unflattened_module"] is top
    for part in (top, first, leaf):
        assert part.graph.owning_module is part


@WAYS
def test_one_pickle_of_two_programs(way: Callable[[Any], Any]) -> None:
    model, x = Counter(), torch.randn(3)
    one, other = ours_of(model, x), ours_of(model, x)
    other.count = one.count
    a, b = way((one, other))
    assert a.count is b.count
    assert a.graph is not b.graph
    a(x)
    assert b.count == 1


@pytest.mark.parametrize("build", [Nest, Shared], ids=lambda b: b.__name__)
def test_fake_values_keep_one_set_of_symbols(build: type[nn.Module]) -> None:
    model = build()
    args = tuple(torch.randn(3, 4) for _ in range(1 + (build is Nest)))
    batch = torch.export.Dim("batch", min=2, max=64)
    module = ours_of(model, *args, dynamic_shapes=tuple({0: batch} for _ in args))
    again = pickled(module)
    values = [
        n.meta["val"]
        for m in again.modules()
        if hasattr(m, "graph")
        for n in m.graph.nodes
        if isinstance(n.meta.get("val"), Tensor)
    ]
    assert len({id(v.fake_mode) for v in values}) == 1
    assert_runs_as_eager(again, model, tuple(torch.randn(5, 4) for _ in args))


def test_a_pickler_that_lives_on() -> None:
    """An unpickler knows the objects that it wrote; another one writes the current ones."""
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.randn(2, 3)
    module = ours_of(model, x)
    first = pickle.Pickler(io.BytesIO())
    first.dump(module)
    module.get_submodule("0").extra = nn.Linear(1, 1)
    linear = module.get_submodule("0")
    linear.graph = copy.deepcopy(linear.graph)
    linear.body = torch.fx.symbolic_trace(nn.ReLU())
    again = pickled(module)
    assert [n for n, _ in again.named_modules()] == ["", "0", "0.extra", "0.body", "1"]
    assert_same_outputs(again.get_submodule("0").body(x), x.relu())
    assert_same_outputs(again(x), model(x))


def test_pickling_keeps_nothing_alive() -> None:
    module = ours_of(nn.Sequential(Branches()), torch.randn(2, 3))
    child = weakref.ref(module.get_submodule("0").linear)
    graph = weakref.ref(module.get_submodule("0").graph)
    data = pickle.dumps(module)
    del module
    gc.collect()
    assert child() is None
    assert graph() is None
    assert isinstance(pickle.loads(data), nn.Module)


def test_tensors_are_seen_by_torch_save() -> None:
    """They are stored as tensors, so that they can be brought to another device when read."""
    module = ours_of(nn.Sequential(nn.Linear(3, 3)), torch.randn(2, 3))
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    again = torch.load(stream, weights_only=False, map_location="meta")
    assert {p.device.type for p in again.parameters()} == {"meta"}


@WAYS
def test_after_compiling_in_place(way: Callable[[Any], Any]) -> None:
    torch._dynamo.reset()
    model, x = nn.Sequential(nn.Linear(3, 3)), torch.randn(2, 3)
    module = ours_of(model, x)
    module.compile(backend="eager")
    module(x)
    again = way(module)
    assert again._compiled_call_impl is None
    assert_same_outputs(again(x), model(x))


@pytest.mark.slow("exports control flow for each case")
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_protocols(protocol: int) -> None:
    model, x = nn.Sequential(Branches()), torch.randn(2, 3)
    again = pickle.loads(pickle.dumps(ours_of(model, x), protocol=protocol))
    assert_runs_as_eager(again, model, (x,))


# ---- shallow copies -----------------------------------------------------------------------------


def test_shallow_copies_share_what_torchs_share() -> None:
    model, args = Nest(), (torch.randn(3, 4), torch.randn(3, 4))
    program = exported(model, *args)
    ours = ours_of(model, *args)
    theirs = torch_unflatten(program)
    ours(*args)
    ours.graph_signature
    for path in ("", "first", "first.leaf"):
        mine, other = ours.get_submodule(path), theirs.get_submodule(path)
        a, b = copy.copy(mine), copy.copy(other)
        assert type(a) is type(mine)
        for name in ("graph", "_parameters", "_buffers", "_modules", "_ty", "meta"):
            if hasattr(other, name):
                assert getattr(b, name) is getattr(other, name), "torch shares it"
                assert getattr(a, name) is getattr(mine, name), name
        a.training = False
        assert mine.training
    again = copy.copy(ours)
    assert_runs_as_eager(again, model, args, gradients=True)
    assert again.first.linear.weight is ours.first.linear.weight
    assert again.graph_module.code == ours.graph_module.code
    assert again.graph_signature == ours.graph_signature
    assert [n.name for n in again.input_placeholders] == [n.name for n in ours.input_placeholders]
    leaf = copy.copy(ours.first.leaf)
    x = torch.randn(3, 4)
    assert_same_outputs(leaf(x, x), ours.first.leaf(x, x))


def test_shallow_copies_of_dispatchers() -> None:
    model, x = Repeated(nn.Sequential(nn.Linear(4, 4))), torch.randn(3, 4)
    ours = ours_of(model, x, preserve_module_call_signature=("inner",))
    again = copy.copy(ours)
    assert_runs_as_eager(again, model, (x,))
    dispatcher = copy.copy(ours.inner)
    assert dispatcher.call_modules() is ours.inner.call_modules()
    assert_same_outputs(dispatcher(x), model.inner(x))


class Adds(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1


@WAYS
@pytest.mark.parametrize(
    "value", [torch.arange(3.0), TwoTensor(torch.ones(3), torch.zeros(3))], ids=["plain", "two"]
)
def test_tensors_as_arguments(way: Callable[[Any], Any], value: Tensor) -> None:
    """As a pass may put them into a graph."""
    module, x = ours_of(Adds(), torch.ones(3)), torch.ones(3)
    (add,) = module.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    add.args = (add.args[0], value)
    copied = way(module)
    (add,) = copied.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    assert type(add.args[1]) is type(value)
    assert torch.equal(copied(x), module(x))

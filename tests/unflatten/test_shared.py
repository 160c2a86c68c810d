"""Modules under several names: calls of their children keep their places, state and order."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import export

from tests.support.unflatten_cases import assert_unflattens_as_torch, quietly
from tests.support.unflatten_compare import assert_runs_as_eager

X = torch.linspace(-1.0, 1.0, 6).reshape(2, 3)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * 2


class Adds(nn.Module):
    """Does not use its own parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(3) * 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class UsesChilds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Adds()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) @ self.inner.weight


class UsesNone(UsesChilds):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


class Differs(nn.Module):
    """Each call of the child has another graph."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block()

    def forward(self, x: Tensor, times: int = 1) -> Tensor:
        return self.inner(x[:, : 3 * times].repeat(1, 1)) * times if times > 1 else self.inner(x)


class Twice(nn.Module):
    def __init__(self, shared: nn.Module) -> None:
        super().__init__()
        self.c = shared
        self.d = nn.Sequential(shared)

    def forward(self, x: Tensor) -> Tensor:
        return self.d(self.c(x))


class Thrice(Twice):
    def __init__(self, shared: nn.Module) -> None:
        super().__init__(shared)
        self.e = nn.ModuleDict({"f": shared})

    def forward(self, x: Tensor) -> Tensor:
        return self.e["f"](self.d(self.c(self.c(x)))) + self.c(x)


def keys(model: nn.Module) -> set[str]:
    return set(model.state_dict())


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("outer", [Twice, Thrice])
@pytest.mark.parametrize("shared", [Block, UsesChilds, UsesNone, Differs])
def test_children_of_shared_modules(
    shared: type[nn.Module], outer: type[Twice], strict: bool
) -> None:
    model = outer(shared())
    program = export(copy.deepcopy(model), (X,), strict=strict)
    if outer is Thrice and strict:
        # torch leaves a second name for a call that it has merged.
        ours = quietly(program)
        assert_runs_as_eager(ours, model, (X,), {})
    else:
        ours = assert_unflattens_as_torch(program, model, (X,), {}, tolerant=True).ours
    assert keys(ours) >= keys(model)


def test_calls_of_a_shared_child_that_differ_run_their_own_graphs() -> None:
    """The second path calls it with another number of rows, which the graph has as a constant."""

    class Rows(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x.shape[0]

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = Rows()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.rows(x) * self.weight

    class Root(Twice):
        def forward(self, x: Tensor) -> Tensor:
            return self.d(torch.cat([self.c(x)] * 2))

    model = Root(Holder())
    ours = quietly(export(copy.deepcopy(model), (X,), strict=True))
    assert_runs_as_eager(ours, model, (X,), {})
    assert_runs_as_eager(ours, model, (X,), {})


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.linspace(0.1, 0.9, 9).reshape(3, 3))

    def forward(self, x: Tensor, flag: bool, *, n: int = 1) -> Tensor:
        return (x @ self.w if flag else x) * n


class Pair(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.a = inner
        self.b = nn.ModuleDict({"q": inner})

    def forward(self, x: Tensor) -> Tensor:
        return self.b["q"](self.a(x, True, n=1), False, n=2)  # type: ignore[no-any-return]


class ManyNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.i = Inner()
        self.pair = Pair(self.i)
        self.j = self.i

    def forward(self, x: Tensor) -> Any:
        a = self.i(x, True, n=2)
        b = self.i(a, False, n=2)
        c = self.pair(self.pair(b))
        return self.j(c, True, n=3) + a, {"c": c}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "preserved", [("j", "i", "pair.a", "pair.b.q"), ("i", "pair", "pair.a", "pair.b.q", "j")]
)
def test_dispatchers_stay_in_step(preserved: tuple[str, ...], strict: bool) -> None:
    """Merged calls reach a dispatcher as often as they do, not as often as there were names."""
    model = ManyNames()
    program = export(
        copy.deepcopy(model), (X,), strict=strict, preserve_module_call_signature=preserved
    )
    ours = quietly(program)
    for _ in range(3):
        assert_runs_as_eager(ours, model, (X,), {})


@pytest.mark.parametrize("strict", [False, True])
def test_an_unflattened_module_with_numbered_calls_can_make_the_trip_again(strict: bool) -> None:
    class Leaf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x: Tensor, k: int) -> Tensor:
            return self.linear(x) + k

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.i = Leaf()

        def forward(self, x: Tensor) -> Tensor:
            return self.i(self.i(x, 1), 2)  # type: ignore[no-any-return]

    model = Root()
    once = quietly(export(copy.deepcopy(model), (X,), strict=strict))
    assert any("@" in name for name, _ in once.named_modules())
    twice = quietly(export(once, (X,), strict=False))
    torch.testing.assert_close(twice(X), model(X))

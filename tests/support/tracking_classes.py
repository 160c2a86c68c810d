"""Programs whose modules share base classes: Dynamo has to find the class with `forward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from tests.support.tracking import Tracer
from tests.support.tracking_cases import SCENARIOS, x

Classes = tuple[type[nn.Module], ...]


class Adds(nn.Module):
    def forward(self, x: Any) -> Any:
        return x + 1


def doubled(self: Any, *args: Any) -> Any:
    return Adds.__call__(self, *args) * 2


def derived(name: str, *bases: type, **members: Any) -> Any:
    return type(name, bases, members)


def below_the_class_with_forward() -> Classes:
    second = derived("Second", Adds)
    return second, derived("Third", second)


def chain_of_five() -> Classes:
    classes = [Adds]
    for number in range(4):
        classes.append(derived(f"Link{number}", classes[-1]))
    return classes[1], classes[3], classes[4]


def siblings() -> Classes:
    shared = derived("Shared", Adds)
    return derived("Left", shared), derived("Right", shared), shared


def diamond() -> Classes:
    left, right = derived("Left", Adds), derived("Right", Adds)
    joined = derived("Joined", left, right)
    return joined, right, derived("Below", joined)


def diamond_whose_right_side_has_forward() -> Classes:
    left = derived("Left", Adds)
    right = derived("Right", Adds, forward=lambda self, x: x - 1)
    joined = derived("Joined", left, right)
    return left, joined, derived("Below", joined)


def mixin_that_is_no_module() -> Classes:
    mixin = derived("Mixin", object)
    second = derived("Second", mixin, Adds)
    return second, derived("Third", second), derived("Other", mixin, Adds)


def own_call() -> Classes:
    calls = derived("Calls", Adds, __call__=doubled)
    second = derived("Second", calls)
    return second, derived("Third", second), derived("Plain", Adds)


def own_call_impl() -> Classes:
    base = nn.Module._call_impl
    calls = derived("Calls", Adds, _call_impl=lambda self, *args: base(self, *args) + 2)
    second = derived("Second", calls)
    return second, derived("Third", second), derived("Plain", Adds)


def forward_in_the_middle() -> Classes:
    second = derived("Second", Adds)
    other = derived("Other", second, forward=lambda self, x: x * 3)
    return derived("Below", other), derived("Third", second), derived("Fourth", other)


def classes_of_torch() -> Classes:
    second = derived("Second", nn.ReLU)
    return second, derived("Third", second), nn.ReLU


HIERARCHIES: tuple[Callable[[], Classes], ...] = (
    below_the_class_with_forward,
    chain_of_five,
    siblings,
    diamond,
    diamond_whose_right_side_has_forward,
    mixin_that_is_no_module,
    own_call,
    own_call_impl,
    forward_in_the_middle,
    classes_of_torch,
)


def _add(hierarchy: Callable[[], Classes], order: tuple[int, ...]) -> None:
    def program(t: Tracer) -> None:
        classes = hierarchy()
        t.log(t.compile(nn.Sequential(*(classes[place]() for place in order)))(x))

    SCENARIOS["_".join(("classes", hierarchy.__name__, *map(str, order)))] = program


for _hierarchy in HIERARCHIES:
    _order = tuple(range(len(_hierarchy())))
    _add(_hierarchy, _order)
    _add(_hierarchy, _order[::-1])

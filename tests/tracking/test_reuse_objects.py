"""Calls that differ by objects beside their modules and arguments: each is traced as by torch."""

from __future__ import annotations

import collections
import enum
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.tracking.test_reuse import Model, instantiated_layers, report_of, x

pytestmark = pytest.mark.slow("captures each model with torch, with instances and with the check")


class Small(nn.Module):
    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.index = index
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor, *rest: Any) -> Any:
        return self.lin(x)


class Scaled(Small):
    """By a number that is part of the graph."""

    def forward(self, x: Tensor, *rest: Any) -> Any:
        return self.lin(x) * self.factor(*rest)

    def factor(self, *rest: Any) -> Any:
        return 2


def test_small_layers_are_instantiated() -> None:
    assert instantiated_layers(Model(Scaled), x()) == ["2", "3"]


# Properties that only one module has


KNOWN: dict[Any, Any] = {}


class ByIdentity(Scaled):
    def factor(self) -> int:
        return id(self) % 7


class ByHash(Scaled):
    def factor(self) -> int:
        return hash(self) % 7


class ByParameter(Scaled):
    def factor(self) -> int:
        return id(self.lin.weight) % 7


class ByTable(Scaled):
    def factor(self) -> int:
        return id(self._parameters) % 7


class AmongModules(Scaled):
    def factor(self) -> int:
        return 2 if self in KNOWN["list"] else 3


class KeyOfModules(Scaled):
    def factor(self) -> int:
        return int(KNOWN["dict"].get(self, 3))


class WeakKey(Scaled):
    def factor(self) -> int:
        return int(KNOWN["weak"].get(self, 3))


class IsTheLast(Scaled):
    def factor(self) -> int:
        return 2 if self is KNOWN["list"][-1] else 3


class OwnConstant(Scaled):
    @torch._dynamo.assume_constant_result
    def factor(self) -> int:
        return self.index + 1


class OwnTensor(Scaled):
    def factor(self) -> Any:
        return self.chosen()

    @torch._dynamo.assume_constant_result  # Dynamo keeps a global of its name
    def chosen(self) -> Any:
        return KNOWN["tensors"][self.index // 2]


class ByTheBaseClass(Scaled):
    def factor(self) -> Any:
        return super().__getattribute__("index")


IDENTITIES: list[type[Scaled]] = [
    ByIdentity,
    ByHash,
    ByParameter,
    ByTable,
    AmongModules,
    KeyOfModules,
    WeakKey,
    OwnConstant,
    OwnTensor,
    ByTheBaseClass,
]


def of_known_layers(layer: type[Scaled], count: int) -> Model:
    """A model whose last layers are listed outside of it."""
    model = Model(layer, count)
    last = list(model.layers)[2:]
    KNOWN["list"] = last
    KNOWN["dict"] = {last[0]: 2}
    KNOWN["weak"] = weakref.WeakKeyDictionary({last[0]: 2})
    KNOWN["tensors"] = [torch.full((4,), 2.0), torch.full((4,), 3.0)]
    return model


@pytest.mark.parametrize("layer", IDENTITIES)
def test_what_only_one_module_gives(layer: type[Scaled]) -> None:
    assert instantiated_layers(of_known_layers(layer, 4), x()) == []


def test_a_module_that_is_told_from_others() -> None:
    assert "4" not in instantiated_layers(of_known_layers(IsTheLast, 5), x())


# Objects that are made while tracing, and that calls find in globals


class Place:
    made: Any


HELD = Place()


class Named:
    number = 0


class Appending(Scaled):
    def factor(self) -> int:
        HELD.made.append(1)
        return len(HELD.made)


class Adding(Scaled):
    def factor(self) -> int:
        HELD.made.add(len(HELD.made))
        return len(HELD.made)


class Counting(Scaled):
    def factor(self) -> Any:
        HELD.made["number"] += 1
        return HELD.made["number"]


class Assigning(Scaled):
    def factor(self) -> Any:
        HELD.made.number += 1
        return HELD.made.number


class Nested(Scaled):
    def factor(self) -> int:
        HELD.made[0]["list"].append(1)
        return len(HELD.made[0]["list"])


class Iterating(Scaled):
    def factor(self) -> Any:
        return next(HELD.made)


class Calling(Scaled):
    def factor(self) -> Any:
        return HELD.made()


def counter() -> Callable[[], int]:
    count = 0

    def following() -> int:
        nonlocal count
        count += 1
        return count

    return following


def named_tensor() -> Tensor:
    made: Any = torch.ones(4)
    made.number = 0
    return made  # type: ignore[no-any-return]


MADE: dict[str, tuple[Callable[[], Any], type[Scaled]]] = {
    "a list": (lambda: [], Appending),
    "a deque": (lambda: collections.deque(), Appending),
    "a set": (lambda: set(), Adding),
    "a dict": (lambda: {"number": 0}, Counting),
    "an object": (lambda: Named(), Assigning),
    "a tensor with an attribute": (named_tensor, Assigning),
    "a list in others": (lambda: [{"list": []}], Nested),
    "an iterator": (lambda: iter([5, 6, 7, 8]), Iterating),
    "a counter": (lambda: itertools.count(), Iterating),
    "a generator": (lambda: (each for each in (5, 6, 7, 8)), Iterating),
    "a closure": (counter, Calling),
}


class Holding(Model):
    def __init__(self, make: Callable[[], Any], layer: type[Scaled]) -> None:
        super().__init__(layer)
        self.make = make

    def forward(self, x: Tensor) -> Any:
        HELD.made = self.make()
        return super().forward(x)


@pytest.mark.parametrize(("make", "layer"), MADE.values(), ids=MADE)
def test_objects_that_are_made_and_changed(make: Callable[[], Any], layer: type[Scaled]) -> None:
    assert instantiated_layers(Holding(make, layer), x()) == []


class Numbered(Scaled):
    def factor(self) -> Any:
        return HELD.made.number


class Numbering(Model):
    def forward(self, x: Tensor) -> Any:
        HELD.made = Named()
        for number, layer in enumerate(self.layers):
            HELD.made.number = number
            x = layer(x)
        return x


def test_an_object_that_changes_between_the_calls() -> None:
    assert instantiated_layers(Numbering(Numbered), x()) == []


def test_lists_of_a_call_of_its_own() -> None:
    class Listing(Scaled):
        def factor(self) -> int:
            parts: list[int] = []
            parts.append(2)
            return len(parts)

    model = Holding(lambda: [1], Listing)
    assert instantiated_layers(model, x()) == ["2", "3"]


class Mode(enum.Enum):
    FIRST = 2
    LATER = 3


class ByMode(Scaled):
    """Dynamo guards otherwise on a member that it has met."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self.mode = Mode.LATER if index else Mode.FIRST

    def factor(self, *rest: Any) -> Any:
        return 2 if self.mode is Mode.FIRST else 3


def test_an_enum_member_that_a_later_layer_meets_first() -> None:
    assert instantiated_layers(Model(ByMode, 5), x()) == ["3", "4"]


class Twice(Small):
    """Tables of the module are met again after its call."""

    def forward(self, x: Tensor, *rest: Any) -> Any:
        x = self.lin(self.lin(x))
        return torch.utils.checkpoint.checkpoint(self.lin, x, use_reentrant=False)


class ReadingAgain(Model):
    def forward(self, x: Tensor) -> Any:
        x = super().forward(x)
        layer: Any = self.layers[3]
        return x + layer.lin.weight.sum() + len(layer._modules)


@pytest.mark.parametrize("layer", [Small, Twice])
def test_a_layer_that_is_read_after_its_call(layer: type[Small]) -> None:
    report_of(ReadingAgain(layer), x())


# Arguments and results with more than their values


class OfArgument(Scaled):
    def factor(self, given: Any) -> Any:
        return given.number if hasattr(given, "number") else given.item()


class Marking(Model):
    def forward(self, x: Tensor) -> Any:
        for number, layer in enumerate(self.layers):
            given: Any = x + 1
            given.number = number
            x = layer(x, given)
        return x


class Constants(Model):
    def forward(self, x: Tensor) -> Any:
        for number, layer in enumerate(self.layers):
            x = layer(x, torch.tensor(number))
        return x


@pytest.mark.parametrize("kind", [Marking, Constants])
def test_arguments_that_have_more_than_a_shape(kind: type[Model]) -> None:
    assert instantiated_layers(kind(OfArgument), x()) == []


class MarkedResult(Small):
    def forward(self, x: Tensor, *rest: Any) -> Any:
        made: Any = self.lin(x)
        made.number = 3
        return made


class ReadingResults(Model):
    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
            x = x * x.number
        return x


def test_a_result_with_an_attribute() -> None:
    assert instantiated_layers(ReadingResults(MarkedResult), x()) == []


class ReturningAnArgument(Small):
    def forward(self, x: Tensor, *rest: Any) -> Any:
        return self.lin(x), rest[0]


class ComparingResults(Model):
    def forward(self, x: Tensor) -> Any:
        for given in ([1], {"a": x}):
            for layer in self.layers:
                x, same = layer(x, given)
                x = x * (2 if same is given else 3)
        return x


def test_a_container_that_is_returned_is_the_argument() -> None:
    assert instantiated_layers(ComparingResults(ReturningAnArgument), x())[:2] == ["2", "3"]

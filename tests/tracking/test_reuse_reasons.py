"""Why a call is not repeated, and calls with rare arguments and results that are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.output_graph import OutputGraph

import fxpress
from fxpress.functional_export import ReuseReport, check_reuse, reuse_layers, reuse_report
from tests.tracking.test_reuse import Model, compiled, instantiated_layers, report_of, x

pytestmark = pytest.mark.slow("captures each model with torch, with instances and with the check")

ONE = 1


class Small(nn.Module):
    """The first layer alone leaves out what the others do: it meets classes and methods."""

    def __init__(self, index: int = 0) -> None:
        super().__init__()
        self.begins = index == 0
        self.lin = nn.Linear(4, 4)

    def forward(self, x: Tensor, *rest: Any) -> Any:
        return self.act(self.lin(x) * ONE)

    def act(self, x: Tensor) -> Any:
        return x * 2


def reason_of(report: ReuseReport, layer: int) -> str:
    (call,) = [call for call in report.calls if call.path.endswith(f"layers.{layer}")]
    assert call.instantiated_from is None
    return call.reason


OUTSIDE = nn.Linear(4, 4)
TENSOR = torch.ones(4)
KEY = (1, 2)
HELD: dict[str, Any] = {"number": 2}


class OtherModule(Small):
    def act(self, x: Tensor) -> Any:
        return x if self.begins else OUTSIDE(x)


class OtherTensor(Small):
    def act(self, x: Tensor) -> Any:
        return x if self.begins else x * TENSOR


class OtherNumber(Small):
    def act(self, x: Tensor) -> Any:
        return x if self.begins else x * HELD["number"]


class OpenGenerator(Small):
    def act(self, x: Tensor) -> Any:
        parts = (x * number for number in (2, 3))
        return x if self.begins else next(parts)


class ByPositions(Small):
    def act(self, x: Tensor) -> Any:
        return x if self.begins else x * x.nonzero().sum()


class ByItem(Small):
    def act(self, x: Tensor) -> Any:
        return x if self.begins else x * x.sum().item()


class OfBody(Small):
    def act(self, x: Tensor) -> Any:
        if self.begins:
            return x
        return torch.utils.checkpoint.checkpoint(self.lin, x, use_reentrant=False)


class Sparse(Small):
    def act(self, x: Tensor) -> Any:
        return x if self.begins else x.to_sparse().to_dense()


class KnownValue(Small):
    def act(self, x: Tensor) -> Any:
        return x if self.begins else x * torch.tensor(2.0)


class Conjugated(Small):
    def act(self, x: Tensor) -> Any:
        return x if self.begins else (x * 1j).conj().real


class BufferInPlace(Small):
    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self.register_buffer("total", torch.zeros(4))

    def act(self, x: Tensor) -> Any:
        self.total.add_(1)
        return x + self.total


class Slots(Small):
    __slots__ = ("more",)


class ByKey(Small):
    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self.keys = {KEY}

    def act(self, x: Tensor) -> Any:
        return x if (1, 2) in self.keys else -x


class InDict(Small):
    def forward(self, x: Any, *rest: Any) -> Any:
        return {"x": super().forward(x["x"])}


class DictModel(Model):
    def forward(self, x: Tensor) -> Any:
        return super().forward({"x": x})  # type: ignore[arg-type]


class Holding(Model):
    """A tensor of the graph is held by a global."""

    def forward(self, x: Tensor) -> Any:
        HELD["made"] = x * 2
        for layer in self.layers:
            x = x + layer(x)
        return x


class Held(Small):
    def act(self, x: Tensor) -> Any:
        return x if self.begins else (x, HELD["made"])[1]


class NamingTheHeld(Small):
    def act(self, x: Tensor) -> Any:
        if self.begins:
            return x
        held = HELD["made"]
        return x * held


class WithASlice(Model):
    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x, slice(0, 2))
        return x


class WithAModule(Model):
    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x, self.layers)
        return x


REASONS: dict[str, tuple[Callable[[Any], Model], type[Small], str]] = {
    "a module from elsewhere": (Model, OtherModule, "the first call that uses another module"),
    "a tensor from elsewhere": (Model, OtherTensor, "the first call that reads an input"),
    "a number from elsewhere": (Model, OtherNumber, "the first call that reads G"),
    "symbols": (Model, ByPositions, "changed Dynamo's state: hooks, symbols, guards on shapes"),
    "a symbol of a known kind": (Model, ByItem, "has unbacked_bindings"),
    "a body": (Model, OfBody, "wrap_body_0, an input of the call, is not"),
    "a sparse tensor": (Model, Sparse, "returns a torch.sparse_coo FakeTensor"),
    "a tensor whose value is known": (Model, KnownValue, "returns a constant"),
    "a conjugated tensor": (Model, Conjugated, "returns a constant"),
    "a buffer in place": (Model, BufferInPlace, "changes a parameter or a buffer in place"),
    "slots": (Model, Slots, "Slots has __slots__"),
    "a guard on a key": (Model, ByKey, "the call's guard SET_CONTAINS checks"),
    "a dict": (DictModel, InDict, "the result of the call is a ConstDictVariable"),
    "a tensor from before": (Holding, Held, "the result of the call existed before"),
    "a name for a tensor from before": (Holding, NamingTheHeld, "a node of another call"),
    "a slice as argument": (WithASlice, Small, "an argument is a slice"),
    "a module as argument": (WithAModule, Small, "an argument is a Unspec"),
}


if hasattr(OutputGraph, "close_local_generators"):  # older releases leave them open
    REASONS["a generator"] = (Model, OpenGenerator, "the earlier call leaves a generator open")


@pytest.mark.parametrize(("kind", "layer", "reason"), REASONS.values(), ids=REASONS)
def test_reason(kind: Callable[[Any], Model], layer: type[Small], reason: str) -> None:
    report = report_of(kind(layer), x())
    traced = [call.reason for call in report.calls if call.kind == layer.__name__]
    assert any(reason in each for each in traced), str(report)


class Changing(Model):
    """The program changes an object that it received, before it is an argument."""

    def forward(self, x: Tensor, given: list[Tensor]) -> Any:  # type: ignore[override]
        given.append(x)
        for layer in self.layers:
            x = layer(x, given)
        return x


def test_a_given_list_that_was_changed() -> None:
    model = Changing(Small)
    with fxpress.installed():
        compiled(model, x(), [x()])
    assert reason_of(reuse_report(), 3) == "the program changed an argument before the call"


# Calls that are repeated


class OfNothing(Small):
    def forward(self, x: Tensor, *rest: Any) -> Any:
        return x


class OfParameter(Small):
    def forward(self, x: Tensor, *rest: Any) -> Any:
        return self.lin.weight


class OfList(Small):
    def forward(self, x: Any, *rest: Any) -> Any:
        made = self.lin(x[0])
        return [made, made, (made, None)]


class ListModel(Model):
    def forward(self, x: Tensor) -> Any:
        return super().forward([x])  # type: ignore[arg-type]


class NamingItsArgument(Small):
    def forward(self, x: Tensor, *rest: Any) -> Any:
        given = x
        return self.lin(given)


class Doubling(Model):
    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x * 2)
        return x


class Summing(Small):
    def forward(self, x: Tensor, *rest: Any) -> Any:
        return sum(self.lin(x) * number for number in (2, 3))


def _cut(x: Tensor) -> Tensor:
    return torch.cat([x, x])[1:3]


class Cutting(Small):
    """By one node whose result is a part of a storage that no other node has."""

    def forward(self, x: Tensor, *rest: Any) -> Any:
        return CUT(self.lin(x))


CUT = torch._dynamo.allow_in_graph(_cut)


class CallingTheOther(Small):
    """Its classes were met before: `OUTSIDE` is the first call's alone."""

    def act(self, x: Tensor) -> Any:
        return OUTSIDE(x)


REPEATED: dict[str, tuple[Callable[[Any], Model], type[Small]]] = {
    "an argument": (Model, OfNothing),
    "a parameter": (Doubling, OfParameter),
    "a list": (ListModel, OfList),
    "a name for an argument": (Doubling, NamingItsArgument),
    "a generator that is used up": (Model, Summing),
    "a part of a storage": (Model, Cutting),
    "a module that stands outside": (Model, CallingTheOther),
}


@pytest.mark.parametrize(("kind", "layer"), REPEATED.values(), ids=REPEATED)
def test_repeated(kind: Callable[[Any], Model], layer: type[Small]) -> None:
    assert instantiated_layers(kind(layer), x())[-1] == "3"


def test_parameters_with_gradients() -> None:
    model = Model(Small)
    model(x()).sum().backward()
    assert instantiated_layers(model, x()) == ["2", "3"]


class WithASize(Small):
    def forward(self, x: Tensor, *rest: Any) -> Any:
        return self.lin(x), x.shape[0] * 2


class Sizes(Model):
    def forward(self, x: Tensor) -> Any:
        size = x.shape[0]
        for layer in self.layers:
            x, size = layer(x, size)
        return x * size


def test_sizes_that_are_symbols() -> None:
    model, given = Sizes(WithASize), x()
    torch._dynamo.mark_dynamic(given, 0)
    with fxpress.installed():
        with reuse_layers(False):
            expected = compiled(model, given)
        with check_reuse():
            compiled(model, given)
        with check_reuse(False):
            made = compiled(model, given)
    assert any(call.kind == "WithASize" for call in reuse_report().instantiated)
    assert made[:2] == expected[:2]
    assert torch.equal(made[2], model(given))


class Passing(Small):
    def forward(self, x: Tensor, *rest: Any) -> Any:
        return self.lin(x), rest[0]


class PassingOn(Model):
    """Nobody looks at what is passed on."""

    def forward(self, x: Tensor, rest: Any) -> Any:  # type: ignore[override]
        for layer in self.layers:
            x, rest = layer(x, rest)
        return x


@pytest.mark.parametrize("rest", [[1], 2, "text", None])
def test_results_that_nobody_looks_at(rest: Any) -> None:
    model, given = PassingOn(Passing), x()
    with fxpress.installed():
        with reuse_layers(False):
            expected = compiled(model, given, rest)
        with check_reuse():
            compiled(model, given, rest)
        made = compiled(model, given, rest)
    assert made[:2] == expected[:2]


def exported(model: nn.Module, given: Tensor, **options: Any) -> list[str]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(**options):
        made = torch._dynamo.export(model)(given)
    return [str(node.format_node()) for node in made.graph_module.graph.nodes]


def test_legacy_export() -> None:
    model, given = Model(Small), x()
    expected = exported(model, given)
    with fxpress.installed():
        with check_reuse():
            assert exported(model, given) == expected
        with check_reuse(False):
            assert exported(model, given) == expected
    assert reuse_report().instantiated


def test_legacy_export_takes_no_parameters_as_inputs() -> None:
    model = Model(Small)
    for each in model.modules():
        each.torchdynamo_force_dynamic = True
    options = {"install_free_tensors_for_export": False}
    messages: list[str] = []
    for block in (contextlib.nullcontext(), fxpress.installed()):
        with block, pytest.raises(AssertionError) as caught:
            exported(model, x(), **options)
        messages.append(str(caught.value))
    assert len(set(messages)) == 1

"""Layers that are alike are traced once: the graph is torch's, and what differs is traced."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import functional_export as torch_capture

import fxpress
from fxpress import functional_export
from fxpress._graphs.tracking.reuse.report import ModuleCall
from fxpress.functional_export import ReuseReport, check_reuse, reuse_layers, reuse_report
from tests.support.captured import assert_same_captured
from tests.support.tracking import Tracer, assert_same_traces

COUNTS = {"calls": 0}


class Layer(nn.Module):
    def __init__(self, index: int = 0, width: int = 4) -> None:
        super().__init__()
        self.index = index
        self.scale = 2.0
        self.norm = nn.LayerNorm(4)
        self.up = nn.Linear(4, width)
        self.down = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(self.norm(x)).relu_()
        z = y.view(-1).view_as(y)
        return x + self.down(z) * self.scale


class Model(nn.Module):
    def __init__(self, layer: Callable[[int], nn.Module], count: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(map(layer, range(count)))

    def forward(self, x: Tensor) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def report_of(model: nn.Module, *args: Any) -> ReuseReport:
    """The report of a capture that is torch's, with instances and under the check."""
    torch._dynamo.reset()
    theirs = torch_capture._dynamo_graph_capture_for_export(model)(*args)
    with fxpress.installed():
        with check_reuse():
            functional_export._dynamo_graph_capture_for_export(model)(*args)
        with check_reuse(False):
            ours = functional_export._dynamo_graph_capture_for_export(model)(*args)
    report = reuse_report()
    assert_same_captured(ours, theirs)
    with check_reuse(False):
        assert_same_traces(functools.partial(compile_twice, model, args))
    return report


def compile_twice(model: nn.Module, args: tuple[Any, ...], t: Tracer) -> None:
    """Compile a model, and again after a number of a late layer has changed, if there is one."""
    compiled = t.compile(model, fullgraph=False)
    compiled(*args)
    modules = list(model.modules())[-4:]
    numbers = [(m, n, v) for m in modules for n, v in vars(m).items() if type(v) is float]
    for module, name, value in numbers[-1:]:
        for factor in (2, 3):
            setattr(module, name, value * factor)
            compiled(*args)
        setattr(module, name, value)


def instantiated_layers(model: nn.Module, *args: Any) -> list[str]:
    """The layers that were instantiated: `layers.2`, not what is in them."""
    paths = [call.path.partition("layers.")[2] for call in report_of(model, *args).instantiated]
    return [path for path in paths if path.isdigit()]


def x() -> Tensor:
    return torch.randn(2, 4)


def test_layers_are_instantiated_from_the_second_one() -> None:
    report = report_of(Model(Layer), x())
    layers = [call for call in report.calls if call.kind == "Layer"]
    assert [call.instantiated_from is not None for call in layers] == [False, False, True, True]
    assert layers[3].instantiated_from is not None
    assert layers[3].instantiated_from.endswith("layers.1")
    assert "layers.3 (Layer) instantiated from" in str(report)


def test_old_names_warn() -> None:
    call = ModuleCall("layers.1", "Layer", "layers.0", "")
    with pytest.warns(DeprecationWarning, match=r"ModuleCall\.stamped_from is deprecated"):
        assert call.stamped_from == "layers.0"
    with pytest.warns(DeprecationWarning, match=r"ReuseReport\.stamped is deprecated"):
        assert ReuseReport([call]).stamped == [call]


def test_modules_without_an_equivalent_are_not_described() -> None:
    report = report_of(Model(lambda index: Layer(index, width=5 + index)), x())
    reasons = {call.reason for call in report.calls if call.kind in ("Model", "Layer", "Linear")}
    assert reasons == {"no other module is equivalent"}
    assert {call.kind for call in report.instantiated} == {"LayerNorm"}


class OfList(nn.Module):
    """Its layers are not submodules."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = [Layer(index) for index in range(4)]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_layers_that_no_module_holds_are_instantiated() -> None:
    layers = [call for call in report_of(OfList(), x()).instantiated if call.kind == "Layer"]
    assert [call.path[-3:] for call in layers] == ["[2]", "[3]"]


class Reading(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.index


class OfDict(Layer):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + vars(self)["index"]


class Counting(Layer):
    def forward(self, x: Tensor) -> Tensor:
        COUNTS["calls"] += 1
        return super().forward(x)


class InPlace(Layer):
    def forward(self, x: Tensor) -> Tensor:
        x.add_(1)
        return super().forward(x)


class NoGrad(Layer):
    def forward(self, x: Tensor) -> Tensor:
        torch._C._set_grad_enabled(not torch.is_grad_enabled())
        return super().forward(x)


SHARED = nn.Linear(4, 4)


def with_shared_module(index: int) -> Layer:
    layer = Layer(index)
    layer.down = SHARED
    return layer


def with_shared_parameter(index: int) -> Layer:
    layer = Layer(index)
    layer.up.weight = SHARED.weight
    return layer


def patched(index: int) -> Layer:
    layer = Layer(index)
    layer.forward = lambda x: x * 2  # type: ignore[method-assign]
    return layer


def hooked(index: int) -> Layer:
    layer = Layer(index)
    layer.register_forward_hook(lambda module, args, result: result * 2)
    return layer


def changed(name: str, value: Callable[[int], Any]) -> Callable[[int], Layer]:
    def make(index: int) -> Layer:
        layer = Layer(index)
        setattr(layer, name, value(index))
        return layer

    return make


class WithOptions(Layer):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.options = {f"option {index}": 3.0}

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.options.get("option 1", 1.0)


def frozen(index: int) -> Layer:
    return Layer(index).requires_grad_(index % 2 == 0)


TRACED: dict[str, Callable[[int], nn.Module]] = {
    "a number that is read": Reading,
    "a number that is read by way of the dict": OfDict,
    "another constant": changed("scale", float),
    "another width": lambda i: Layer(i, 4 + i),
    "another key of a dict": WithOptions,
    "a patched forward": patched,
    "hooks": hooked,
    "a module that all have": with_shared_module,
    "a parameter that all have": with_shared_parameter,
    "a counter among the globals": Counting,
    "an argument that is changed": InPlace,
    "torch's global state": NoGrad,
}


OFTEN = ("a number that is read", "another key of a dict", "hooks")  # in each run
SLOW = pytest.mark.slow("a capture for each of many reasons")


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(layer, id=name, marks=() if name in OFTEN else SLOW)
        for name, layer in TRACED.items()
    ],
)
def test_layers_that_differ_are_traced(layer: Callable[[int], nn.Module]) -> None:
    with torch.enable_grad():
        assert instantiated_layers(Model(layer), x()) == []


@pytest.mark.parametrize(("usual", "last"), [(0.0, -0.0), (2.0, 2), (1, True)])
def test_constants_that_are_equal_but_not_the_same(usual: Any, last: Any) -> None:
    layer = changed("scale", lambda i: last if i == 3 else usual)
    assert instantiated_layers(Model(layer), x()) == ["2"]


def test_a_layer_that_does_not_train() -> None:
    model = Model(Layer, 6).train()
    model.layers[3].eval()
    assert instantiated_layers(model, x()) == ["2", "4", "5"]


def test_parameters_that_need_no_gradient() -> None:
    assert instantiated_layers(Model(frozen, 6), x()) == ["3", "4", "5"]


def test_the_same_layer_again() -> None:
    model = Model(Layer, 3)
    model.layers.append(model.layers[0])
    assert instantiated_layers(model, x()) == ["2"]


def test_layers_that_alternate() -> None:
    model = Model(lambda i: Layer(i, 4 + i % 2), 8)
    assert instantiated_layers(model, x()) == ["3", "4", "5", "6", "7"]


class Seen(Model):
    """A part of an instantiated layer is called by another path later."""

    def __init__(self) -> None:
        super().__init__(Layer)
        self.hidden = [self.layers[3].norm]

    def forward(self, x: Tensor) -> Any:
        return self.hidden[0](super().forward(x))


def test_a_part_that_has_another_path() -> None:
    assert instantiated_layers(Seen(), x()) == []


class Pairs(Model):
    def forward(self, x: Tensor) -> Any:
        history: list[Tensor] = []
        pair = (x, None)
        for layer in self.layers:
            pair = layer(pair, history)
        return pair, history


class OfPairs(Layer):
    def forward(self, pair: Any, history: list[Tensor]) -> Any:  # type: ignore[override]
        return super().forward(pair[0]), pair[1]


class Appending(OfPairs):
    def forward(self, pair: Any, history: list[Tensor]) -> Any:
        history.append(pair[0])
        return super().forward(pair, history)


def test_containers() -> None:
    assert instantiated_layers(Pairs(OfPairs), x()) == ["2", "3"]
    assert instantiated_layers(Pairs(Appending), x()) == []


class TwoPlaces(Model):
    def forward(self, x: Tensor) -> Any:
        x = self.layers[0](x)
        x = self.layers[1](x)
        x = self.layers[2](x)
        with torch.no_grad():
            y = self.layers[3](x)
        return y, self.layers[4](x)


def test_places_of_a_program() -> None:
    assert instantiated_layers(TwoPlaces(Layer, 5), x()) == ["2", "4"]


def compiled(model: nn.Module, *args: Any) -> tuple[list[str], list[Any], Any]:
    graphs: list[str] = []
    values: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.print_readable(print_output=False))
        values.extend(
            (tuple(node.meta["example_value"].shape), node.meta["example_value"].requires_grad)
            for node in graph.graph.nodes
            if isinstance(node.meta.get("example_value"), Tensor)
        )
        return graph.forward

    torch._dynamo.reset()
    return graphs, values, torch.compile(model, backend=backend)(*args)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic: bool) -> None:
    model, given = Model(Layer), x()
    if dynamic:
        torch._dynamo.mark_dynamic(given, 0)
    with fxpress.installed():
        with reuse_layers(False):
            expected = compiled(model, given)
            assert not reuse_report().instantiated
        with check_reuse(False):
            made = compiled(model, given)
        assert reuse_report().instantiated
    assert made[:2] == expected[:2]
    assert torch.equal(made[2], model(given))


def test_blocks_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from fxpress._graphs.tracking.reuse.settings import mode

    before = mode()
    with check_reuse():
        assert mode() == "check"
        with reuse_layers(False):
            assert mode() == "trace"
        with check_reuse(False):
            assert mode() == "instantiate"
    assert mode() == before

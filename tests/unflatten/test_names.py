"""State that is called like an attribute which is computed, or that fxpress keeps for itself."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import export

from fxpress.unflatten import _disable_interpreter, unflatten
from tests.support.unflatten_cases import exported, ours_of, quietly
from tests.support.unflatten_compare import assert_runs_as_eager, assert_same_outputs


class Holder(nn.Module):
    """State under a name of the caller's choice."""

    def __init__(self, name: str, kind: str) -> None:
        super().__init__()
        self.name = name
        self.linear = nn.Linear(3, 3)
        value = torch.arange(3.0)
        if kind == "buffer":
            self.register_buffer(name, value)
        else:
            self.register_parameter(name, nn.Parameter(value))

    def forward(self, x: Tensor) -> Tensor:
        state = {**self._parameters, **self._buffers}[self.name]
        assert state is not None
        return self.linear(x) * state  # type: ignore[no-any-return]


NAMES = ("graph_module", "input_placeholders", "graph_signature", "_program_specs")


@pytest.fixture(params=[(n, k, d) for n in NAMES for k in ("buffer", "parameter") for d in (0, 1)])
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch._dynamo.reset()
    name, kind, depth = request.param
    holder = Holder(name, kind)
    return nn.Sequential(holder) if depth else holder


def test_state_with_names_of_computed_attributes(model: nn.Module) -> None:
    x = torch.randn(2, 3)
    ours = ours_of(model, x)
    assert_runs_as_eager(ours, model, (x,), gradients=True)
    assert ours.state_dict().keys() == model.state_dict().keys()
    holder = next(m for m in model.modules() if isinstance(m, Holder))
    mine = ours.get_submodule("0") if isinstance(model, nn.Sequential) else ours
    assert torch.equal(getattr(mine, holder.name), getattr(holder, holder.name))
    assert_same_outputs(ours.double()(x.double()), model.double()(x.double()))


def test_copies_of_such_modules(model: nn.Module) -> None:
    x = torch.randn(2, 3)
    ours = ours_of(model, x)
    for again in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert_runs_as_eager(again, model, (x,))
        assert again.state_dict().keys() == model.state_dict().keys()


def test_generated_code_of_such_modules(model: nn.Module) -> None:
    x = torch.randn(2, 3)
    program = exported(model, x)
    with _disable_interpreter():
        ours = quietly(program)
    assert_same_outputs(ours(x), model(x))
    for module in ours.modules():
        if hasattr(module, "finalize"):
            module.finalize()
    assert_same_outputs(ours(x), model(x))
    compiled = torch.compile(quietly(program), backend="eager", fullgraph=True)
    assert_same_outputs(compiled(x), model(x))
    again = unflatten(export(quietly(program), (x,), strict=False))
    assert_same_outputs(again(x), model(x))


def test_constraints_are_checked_all_the_same() -> None:
    model: Any = Holder("input_placeholders", "buffer")
    x = torch.randn(4, 3)
    batch = torch.export.Dim("batch", min=2, max=8)
    ours = ours_of(model, x, dynamic_shapes=({0: batch},))
    assert_runs_as_eager(ours, model, (torch.randn(5, 3),))
    with pytest.raises(RuntimeError, match="Expected input"):
        ours(torch.randn(9, 3))


@pytest.mark.parametrize(
    "name", ["_program_specs", "graph_module", "graph_signature", "input_placeholders"]
)
@pytest.mark.parametrize("depth", [0, 1])
def test_a_child_of_that_name(depth: int, name: str) -> None:
    class Parent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(name, nn.Linear(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.get_submodule(name)(x)  # type: ignore[no-any-return]

    model = nn.Sequential(Parent()) if depth else Parent()
    x = torch.randn(2, 3)
    ours = ours_of(model, x)
    assert_runs_as_eager(ours, model, (x,))
    if name != "graph_signature":
        assert len(ours.graph_signature.parameters) == 2

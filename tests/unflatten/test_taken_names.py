"""State and children whose names the classes of unflattened modules have for something else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.export import export

from tests.support.unflatten_cases import quietly, torchs


class Holder(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.register_buffer(name, torch.arange(2.0))
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        value = self._buffers[self.name]
        assert value is not None
        return x + value


class AroundState(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.inner = Holder(name)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class AroundChild(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.add_module(name, Holder("value"))
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        child = self._modules[self.name]
        assert child is not None
        return child(x)


STATE = "state of module 'inner', a InterpreterModule"
CHILD = "module '', a UnflattenedModule, cannot have a submodule of that name"
NAMES = ["graph", "finalize", "print_readable"]


@pytest.mark.parametrize(
    ("model", "name", "what"),
    [
        *((AroundState, name, STATE) for name in NAMES),
        *((AroundChild, name, CHILD) for name in (*NAMES, "meta", "ivals", "module_call_graph")),
    ],
)
def test_the_error_names_the_module(model: type[nn.Module], name: str, what: str) -> None:
    program = export(model(name), (torch.ones(2),), strict=False)
    with pytest.raises(KeyError, match=f"attribute '{name}' already exists"):
        torchs(program)
    with pytest.raises(KeyError) as caught:
        quietly(program)
    assert caught.value.args == (f"attribute '{name}' already exists: {what}",)


@pytest.mark.parametrize("model", [AroundState, AroundChild])
@pytest.mark.parametrize("name", ["parent", "fqn", "call_modules", "graph_module", "_x"])
def test_other_names_are_free(model: type[nn.Module], name: str) -> None:
    x = torch.ones(2)
    program = export(model(name), (x,), strict=False)
    ours = quietly(program)
    assert torch.equal(ours(x), x + torch.arange(2.0))
    assert list(ours.state_dict()) == list(program.state_dict)

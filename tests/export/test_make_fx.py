"""`make_fx` and `torch.compile` give the same graphs while fxpress is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule
from torch.fx.experimental import proxy_tensor
from torch.utils._pytree import tree_map_only

import fxpress
from fxpress import export
from tests.support.architectures import architecture


class Model(nn.Module):
    """Operators that are traced as one node, as several, as none, and that write."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.down = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        y = x + self.attention(y, y, y)[0]
        parts = self.down(y).relu().split(2, dim=-1)
        total = torch.zeros_like(parts[0]).add_(parts[1])
        return total.masked_fill(total > 1, 0.5).sum()


def training_step(x: Tensor, *parameters: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    model = Model()
    own = [p.detach().requires_grad_() for p in parameters]
    names = [name for name, _ in model.named_parameters()]
    loss = torch.func.functional_call(model, dict(zip(names, own, strict=True)), (x,))
    gradients = torch.autograd.grad(loss, own)
    return [p - 0.1 * g for p, g in zip(own, gradients, strict=True)]


def inputs() -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return (torch.randn(3, 5, 8), *(p.detach() for p in Model().parameters()))


def description(module: GraphModule) -> list[Any]:
    """Return the nodes of a graph, with their meta; tensors are replaced by their metadata."""

    def facts(tensor: Tensor) -> tuple[str, ...]:
        sizes = (str(tensor.shape), str(tensor.stride()), str(tensor.storage_offset()))
        return (type(tensor).__name__, str(tensor.dtype), str(tensor.requires_grad), *sizes)

    return [
        (
            n.format_node(),
            list(n.meta),
            str(tree_map_only(Tensor, facts, n.meta.get("val"))),
            str(n.meta.get("tensor_meta")),
        )
        for n in module.graph.nodes
    ]


@pytest.mark.parametrize("options", [{}, {"record_module_stack": True}, {"pre_dispatch": True}])
@pytest.mark.parametrize("table", [None, core_aten_decompositions()], ids=["plain", "decomposed"])
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_training_steps(mode: str, table: Any, options: dict[str, Any]) -> None:
    def traced(make_fx: Callable[..., Any]) -> GraphModule:
        made: GraphModule = make_fx(training_step, table, mode, **options)(*inputs())
        return made

    expected = description(traced(proxy_tensor.make_fx))
    assert description(traced(export.make_fx)) == expected
    with fxpress.installed():
        assert description(traced(proxy_tensor.make_fx)) == expected
    assert description(traced(proxy_tensor.make_fx)) == expected


def test_exceptions_end_the_block() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError(x.sin().shape[0])

    for _ in range(2):
        with pytest.raises(ValueError, match="3"):
            export.make_fx(fails, tracing_mode="fake")(torch.ones(3))
    test_training_steps("fake", None, {})


@pytest.mark.slow("torch.compile traces each model three times")
@pytest.mark.parametrize("has_gradients", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("family", ["llama", "bert", "t5", "vit"])
def test_compiled_models(family: str, dynamic: bool, has_gradients: bool) -> None:
    def compiled() -> list[Any]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        found = architecture(family, 1)
        graphs: list[Any] = []

        def keep(module: GraphModule, _: Any) -> Any:
            graphs.append(description(module))
            return make_boxed_func(module.forward)

        backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
        with torch.set_grad_enabled(has_gradients):
            torch.compile(found.model, backend=backend, dynamic=dynamic)(
                *found.args, **found.kwargs
            )
        return graphs

    expected = compiled()
    with fxpress.installed():
        assert compiled() == expected

"""Small graphs that several tests cut."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import Graph, GraphModule, Node


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = torch.nn.Parameter(torch.randn(4))
        self.register_buffer("b", torch.randn(4))
        self.lin = torch.nn.Linear(4, 4)
        self.seq = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())

    def forward(
        self, x: torch.Tensor, y: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.lin(x + self.p).clamp(min=0.0, max=1.0)
        w = self.seq(z) * self.b
        return w + z, w.relu()


def mlp() -> GraphModule:
    torch.manual_seed(0)
    return torch.fx.symbolic_trace(Mlp())


def chain(length: int, op: Callable[..., object] = torch.neg) -> GraphModule:
    """x -> op -> op -> ... -> output, without parameters."""
    graph = Graph()
    value = graph.placeholder("x")
    for _ in range(length):
        value = graph.call_function(op, (value,))
    graph.output(value)
    return GraphModule({}, graph)


def counter(size: int) -> Callable[[Node], int]:
    """A stateful callback: the i-th call returns i // size."""
    calls = -1

    def callback(_: Node) -> int:
        nonlocal calls
        calls += 1
        return calls // size

    return callback


def region_graph(
    *, autocast: bool = True, grad: bool = True
) -> tuple[GraphModule, dict[Node, int]]:
    """Seven operations, some without gradients or with autocast; two calls in each partition."""
    graph = Graph()
    value = graph.placeholder("x")
    value = graph.call_function(torch.relu, (value,))
    if grad:
        graph.call_function(torch._C._set_grad_enabled, (False,))
    value = graph.call_function(torch.neg, (value,))
    if autocast:
        enter = graph.call_function(torch.amp._enter_autocast, ("cpu", torch.bfloat16, True, True))
    for _ in range(4):
        value = graph.call_function(torch.matmul, (value, value))
    if autocast:
        graph.call_function(torch.amp._exit_autocast, (enter,))
    if grad:
        graph.call_function(torch._C._set_grad_enabled, (True,))
    value = graph.call_function(torch.exp, (value,))
    graph.output((value,))
    module = GraphModule({}, graph)
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    return module, {n: i // 2 for i, n in enumerate(nodes)}

"""Create exported programs to unflatten, each with the eager module that was exported."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram, export

import graphs

MOE_LAYERS = 8
EXPERTS = 64  # the number of experts in a layer; each is a module
LAYER_CALLS = 10  # calls in a layer of a hand-built program


@dataclass(frozen=True)
class Program:
    """An exported program.

    Attributes:
        name: its name in the table.
        eager: the module that was exported; None for a hand-built program.
        program: the exported program, which benchmarks do not change.
        inputs: positional arguments of both.
    """

    name: str
    eager: nn.Module | None
    program: ExportedProgram
    inputs: tuple[torch.Tensor, ...]

    @property
    def nodes(self) -> int:
        return len(self.program.graph.nodes)

    @property
    def operators(self) -> int:
        return sum(node.op == "call_function" for node in self.program.graph.nodes)


class Experts(nn.Module):  # type: ignore[misc]
    """A Mixture-of-Experts layer whose experts are separate modules; all of them run."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights = self.gate(x).softmax(-1).unbind(-1)
        for weight, expert in zip(weights, self.experts, strict=True):
            x = x + weight.unsqueeze(-1) * expert(x)
        return x


def transformer(layers: int = graphs.LAYERS, width: int = graphs.WIDTH, length: int = 8) -> Program:
    """Return the default model, or a similar model of another size."""
    torch.manual_seed(0)
    eager = nn.Sequential(*(graphs.Layer(width, graphs.HEADS) for _ in range(layers))).eval()
    inputs = (torch.randn(2, length, width),)
    name = f"transformer, {layers} layers" + ("" if width == graphs.WIDTH else f", width {width}")
    return Program(name, eager, export(eager, inputs, strict=False), inputs)


def convolutions(count: int) -> Program:
    """Return a CNN of `count` blocks, whose layers are small."""
    eager, inputs = graphs.convolution_module(count)
    return Program(f"CNN, {count} blocks", eager, export(eager, inputs, strict=False), inputs)


def llama(layers: int) -> Program | None:
    """Return a Llama with random weights; None without `transformers`."""
    if importlib.util.find_spec("transformers") is None:
        return None
    eager, inputs = graphs.llama_module(layers)
    return Program(f"Llama, {layers} layers", eager, export(eager, inputs, strict=False), inputs)


def mixture_of_experts() -> Program:
    """Return a program of many small modules."""
    torch.manual_seed(0)
    eager = nn.Sequential(*(Experts(16, EXPERTS) for _ in range(MOE_LAYERS))).eval()
    inputs = (torch.randn(4, 16),)
    name = f"mixture of experts, {MOE_LAYERS} layers of {EXPERTS}"
    return Program(name, eager, export(eager, inputs, strict=False), inputs)


def hand_built(size: int) -> Program:
    """Return a program as from export, of about `size` nodes in layers of `LAYER_CALLS` calls."""
    graph = torch.fx.Graph()
    layers = max(1, size // (LAYER_CALLS + 1))
    value = torch._subclasses.FakeTensorMode().from_tensor(torch.randn(4))
    state = {f"layers.{i}.scale": nn.Parameter(torch.randn(4)) for i in range(layers)}
    inputs = [_placeholder(graph, f"p_layers_{i}_scale", value) for i in range(layers)]
    x = result = _placeholder(graph, "x", value)
    for i, scale in enumerate(inputs):
        stack = {
            "L__self__": ("", "model.Model"),
            f"L__self__layers.{i}": (f"layers.{i}", "model.Layer"),
        }
        for k in range(LAYER_CALLS):
            other = scale if k == 0 else result
            result = graph.call_function(torch.ops.aten.minimum.default, (result, other))
            result.meta = {"val": value, "nn_module_stack": stack}
    graph.output((result,))
    name = f"hand-built program of {size:,} nodes"
    return Program(name, None, _program(graph, state, x, result), (torch.ones(4),))


def _placeholder(graph: torch.fx.Graph, name: str, value: Any) -> torch.fx.Node:
    node = graph.placeholder(name)
    node.meta["val"] = value
    return node


def _program(
    graph: torch.fx.Graph, state: dict[str, Any], x: torch.fx.Node, result: torch.fx.Node
) -> ExportedProgram:
    from torch.export import graph_signature as sig
    from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
    from torch.utils import _pytree as pytree

    kinds, argument = sig.InputKind, sig.TensorArgument
    specs = [
        sig.InputSpec(kinds.PARAMETER, argument(f"p_{name.replace('.', '_')}"), name)
        for name in state
    ]
    specs.append(sig.InputSpec(kinds.USER_INPUT, argument(x.name), None))
    outputs = [sig.OutputSpec(sig.OutputKind.USER_OUTPUT, argument(result.name), None)]
    in_spec = pytree.tree_structure(((0,), {}))
    call = ModuleCallSignature(
        [argument(x.name)], [argument(result.name)], in_spec, pytree.tree_structure(0)
    )
    paths = ["", "layers", *(f"layers.{i}" for i in range(len(state)))]
    return ExportedProgram(
        torch.nn.Module(),
        graph,
        sig.ExportGraphSignature(specs, outputs),
        state,
        {},
        [ModuleCallEntry(path, call if path == "" else None) for path in paths],
    )

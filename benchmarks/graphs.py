"""Create the graphs to measure: exported models and hand-built graphs, each with partitions."""

from __future__ import annotations

import gc
import importlib.util
import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

LAYERS = 128
LLAMA_LAYERS = 40
WIDTH = 32
HEADS = 4
BLOCK = 37  # nodes in a partition of a hand-built graph
REACH = 8  # a hand-built node takes its inputs from this many nodes before it
KERNELS = (  # with 1, 2 and 3 inputs; values stay small in long chains
    torch.ops.aten.tanh.default,
    torch.ops.aten.minimum.default,
    torch.ops.aten.clamp.Tensor,
)


@dataclass(frozen=True)
class Case:
    """A graph to split.

    Attributes:
        name: its name in the table.
        module: the module to split; benchmarks do not change it.
        inputs: positional arguments of `module` and of its splits.
        ids: partition id of every node that can be in a partition.
    """

    name: str
    module: GraphModule
    inputs: tuple[torch.Tensor, ...]
    ids: dict[Node, int]

    @property
    def nodes(self) -> int:
        return len(self.module.graph.nodes)

    @property
    def partitions(self) -> int:
        return len(set(self.ids.values()))


class Layer(nn.Module):  # type: ignore[misc]
    """A transformer layer of plain torch modules."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        y = self.norm(x)
        query, key, value = (
            linear(y).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(self.gelu(self.up(self.mlp_norm(x))))


def blocks(graph: Graph, count: int) -> dict[Node, int]:
    """Cut a graph into `count` blocks of consecutive nodes, nearly equal in size."""
    nodes = [n for n in graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    return {node: i * count // len(nodes) for i, node in enumerate(nodes)}


def transformer_program(layers: int) -> tuple[Any, tuple[torch.Tensor, ...]]:
    """Return the default model's ExportedProgram and its inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(WIDTH, HEADS) for _ in range(layers))).eval()
    inputs = (torch.randn(2, 8, WIDTH),)
    return torch.export.export(model, inputs, strict=False), inputs


def transformer() -> Case:
    """Return the default model as `ep.module()`, in which parameters are get_attr nodes."""
    program, inputs = transformer_program(LAYERS)
    return _module_case(_transformer_name(LAYERS), program, inputs, LAYERS)


def transformer_cases(layers: int) -> list[Case]:
    """Return the default model as `ep.module()` and as `ep.graph_module`."""
    program, inputs = transformer_program(layers)
    name = _transformer_name(layers)
    module = _module_case(name, program, inputs, layers)
    flat = program.graph_module
    values = (*_lifted_values(program), *inputs)
    name = f"{name}, as `graph_module`, whose parameters are inputs"
    return [module, Case(name, flat, values, blocks(flat.graph, layers))]


def _transformer_name(layers: int) -> str:
    return f"transformer, {layers} layers"


def llama_module(layers: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a Llama with random weights, and inputs; needs `transformers`."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=64,
        use_cache=False,
        attn_implementation="sdpa",
    )
    inputs = (torch.randint(0, 128, (2, 8)),)
    return transformers.LlamaForCausalLM(config).eval(), inputs


def convolution_module(count: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Return a CNN of plain torch modules, and inputs."""
    torch.manual_seed(0)
    blocks = (
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout())
        for _ in range(count)
    )
    return nn.Sequential(*blocks).eval(), (torch.randn(2, 8, 6, 6),)


def llama() -> Case | None:
    """Return an exported 40-layer Llama; None without `transformers`."""
    if importlib.util.find_spec("transformers") is None:
        return None
    module, inputs = llama_module(LLAMA_LAYERS)
    program = torch.export.export(module, inputs, strict=False)
    return _module_case(f"Llama, {LLAMA_LAYERS} layers", program, inputs, LLAMA_LAYERS)


def hand_built(size: int) -> Case:
    """Return a graph of `size` calls with one to three inputs each, in blocks of 37 nodes."""
    rng = random.Random(0)
    graph = Graph()
    nodes = [graph.placeholder("x")]
    enabled = gc.isenabled()
    gc.disable()  # with the collector, building is half as fast
    for i in range(size):
        arity = i % len(KERNELS) + 1
        recent = nodes[-REACH:]
        others = [recent[rng.randrange(len(recent))] for _ in range(arity - 1)]
        node = graph.call_function(KERNELS[arity - 1], (nodes[-1], *others))
        node.meta = _meta(i)
        nodes.append(node)
    graph.output((nodes[-1],))
    if enabled:
        gc.enable()
    ids = {node: i // BLOCK for i, node in enumerate(nodes[1:])}
    module = GraphModule(nn.Module(), Graph())
    graph.owning_module = module
    module._graph = graph  # without the setter, which would generate unused code
    return Case(f"hand-built graph of {size:,} nodes", module, (torch.randn(4),), ids)


def _module_case(name: str, program: Any, inputs: tuple[torch.Tensor, ...], count: int) -> Case:
    module = program.module()
    return Case(name, module, inputs, blocks(module.graph, count))


def _lifted_values(program: Any) -> list[torch.Tensor]:
    """Return the inputs that `program.graph_module` takes before the user's inputs."""
    values = {**program.state_dict, **program.constants}
    return [values[spec.target] for spec in program.graph_signature.input_specs if spec.target]


def _meta(index: int) -> dict[str, Any]:
    """Return the meta that export gives a node; nodes of one layer share their module stack."""
    layer = f"layers.{index // BLOCK}"
    return {
        "stack_trace": f'  File "model.py", line {index}, in forward',
        "nn_module_stack": {layer: (layer, "model.Layer")},
        "torch_fn": (f"call_{index}", "call"),
        "source_fn_stack": [(f"call_{index}", "call")],
        "seq_nr": index,
        "val": None,
    }

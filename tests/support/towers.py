"""A small model whose modules repeat, and its graphs."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree

import torch
from torch import fx, nn
from torch.export import ExportedProgram

from fxpress.partition import SplitCallback

SVG = "{http://www.w3.org/2000/svg}"


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("shift", torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu() + self.shift


class Tower(nn.Module):
    """Two blocks and a head. After a node of the root, the first block is called again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        for layer in self.layers:
            x = layer(x)
        x = self.layers[0](x - 1)
        return self.head(x)


# Tower's operations in graph order: mul, 3 of layers.0, 3 of layers.1, sub, 3 of layers.0, head.
TOWER_DEPTH_1 = [0, *[1] * 6, 2, *[3] * 3, 4]
TOWER_DEPTH_2 = [0, *[1] * 3, *[2] * 3, 3, *[4] * 3, 5]


def exported_tower(*, strict: bool = False) -> ExportedProgram:
    return torch.export.export(Tower().eval(), (torch.randn(2, 4),), strict=strict)


def dynamo_graph(model: Callable[..., torch.Tensor], *args: torch.Tensor) -> fx.GraphModule:
    graphs: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, _inputs: list[torch.Tensor]) -> fx.GraphModule:
        graphs.append(gm)
        return gm

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(*args)
    (gm,) = graphs
    return gm


def ids_of(callback: SplitCallback) -> list[int]:
    return list(callback.values())


def graph_of(build: Callable[[fx.Graph, fx.Node], fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(build(graph, graph.placeholder("x")))
    return fx.GraphModule(nn.Module(), graph)


_TEXTS = (f"{SVG}title", f"{SVG}text")


def texts_of(svg: str, kind: str) -> list[list[str]]:
    """The lines of text of each node or edge of a picture."""
    root = ElementTree.fromstring(svg)
    groups = [group for group in root.iter(f"{SVG}g") if group.get("class") == kind]
    return [[text.text or "" for text in group.iter(f"{SVG}text")] for group in groups]


def elements_of(svg: str) -> list[tuple[str, ...]]:
    """Return each node and edge of a picture: type, name (of an edge: both ends) and texts."""
    root = ElementTree.fromstring(svg)
    groups = [group for group in root.iter(f"{SVG}g") if group.get("class") in ("node", "edge")]
    return [
        (group.get("class", ""), *(text.text or "" for text in group if text.tag in _TEXTS))
        for group in groups
    ]


def partition_names(split: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in split.graph.find_nodes(op="call_module")]


def exported(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> fx.GraphModule:
    class Wrapper(nn.Module):
        def forward(self, *xs: torch.Tensor) -> torch.Tensor:
            return function(*xs)

    return torch.export.export(Wrapper(), args, strict=False).graph_module

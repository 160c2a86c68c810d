"""Compile the pieces of a model between its attentions; attention runs eagerly, as in vLLM.

python piecewise_compilation.py inductor   # or another backend of torch.compile for the pieces
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attention

from fxpress import partition
from fxpress.split_module import split_module


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        attended = attention(q, k, v, is_causal=True)
        return x + self.out(attended.transpose(1, 2).flatten(2))


def piecewise(pieces_backend: str) -> Callable[..., Any]:
    """Return a backend of torch.compile that compiles the pieces between attentions."""

    def compile_graph(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        cut = partition.around(graph, [attention])
        split = split_module(graph, None, cut, keep_original_order=True)
        pieces = dict(split.named_children())
        for name, piece in pieces.items():
            if not piece.graph.find_nodes(op="call_function", target=attention):
                setattr(split, name, torch.compile(piece, backend=pieces_backend))
                print(f"{name}: compiled, {len(piece.graph.nodes)} nodes")
        return split

    return compile_graph


def main() -> None:
    torch.manual_seed(0)
    backend = sys.argv[1] if len(sys.argv) > 1 else "aot_eager"
    model = nn.Sequential(*(Block(32) for _ in range(4))).eval()
    x = torch.randn(2, 8, 32)
    with torch.no_grad():
        compiled = torch.compile(model, backend=piecewise(backend), fullgraph=True)
        torch.testing.assert_close(compiled(x), model(x))
    print("the pieces compute what the model computes")


if __name__ == "__main__":
    main()

"""The model, the program and the folder that the examples of the documentation use."""

import os
import shutil
import tempfile

import torch
from torch import nn

_home = os.getcwd()


class Block(nn.Module):
    """Attention and a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unsqueeze(1).chunk(3, -1)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(attended.squeeze(1))


torch.manual_seed(0)
model = nn.Sequential(Block(8), Block(8)).eval()
x = torch.randn(2, 4, 8)
program = torch.export.export(model, (x,))
graph_module = torch.fx.symbolic_trace(model)


def enter_folder() -> None:
    """Go to a new folder for the files of a page."""
    os.chdir(tempfile.mkdtemp(prefix="fxpress-docs-"))


def leave_folder() -> None:
    """Go back, and remove the folder."""
    folder = os.getcwd()
    os.chdir(_home)
    shutil.rmtree(folder)

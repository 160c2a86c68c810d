"""Unflatten an exported program into modules, and replace layers by quantized ones."""

import torch
from torch import nn
from torch.nn import functional

import fxpress
from fxpress.unflatten import unflatten


class QuantizedLinear(nn.Module):
    """A linear layer whose weight is stored in 8 bits, with a scale for each row."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        weight = weight.detach()
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("bias", bias.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


def is_linear(module: nn.Module) -> bool:
    """Return whether a module only calls linear. A program does not record the user's classes."""
    nodes = module.graph.nodes if hasattr(module, "graph") else ()
    return [n.target for n in nodes if n.op.startswith("call")] == [torch.ops.aten.linear.default]


def state_bytes(module: nn.Module) -> int:
    return sum(value.nbytes for value in module.state_dict().values())


def main() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).eval()
    x = torch.randn(2, 8, 64)
    with fxpress.installed():
        program = torch.export.export(model, (x,))

    module = unflatten(program)  # the user's tree of modules, with a copy of the state
    before, swapped = state_bytes(module), 0
    for name, child in list(module.named_modules()):
        if is_linear(child):
            module.set_submodule(name, QuantizedLinear(child.weight, child.bias))
            swapped += 1
    print(f"{swapped} layers swapped: {before:,} bytes are {state_bytes(module):,} now")

    with torch.no_grad():
        expected, result = model(x), module(x)
    error = ((result - expected).norm() / expected.norm()).item()
    print(f"relative error {error:.4f}")


if __name__ == "__main__":
    main()

"""Export a model before and after a refactoring, and check whether the programs are equal."""

import torch
from torch import nn

import fxpress


class Attention(nn.Module):
    """Before the refactoring: one method."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / 4.0
        return scores.softmax(-1) @ self.value(x)


class Refactored(Attention):
    """After the refactoring: a separate method, other names, and another order of calls."""

    scale = 4.0

    def weights(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        return (queries @ keys.transpose(-1, -2) / self.scale).softmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = self.value(x)
        return self.weights(self.query(x), self.key(x)) @ values


class Slipped(Refactored):
    """A mistake in the refactoring: the scale is the width instead of its square root."""

    scale = 16.0


def export(model: nn.Module) -> torch.export.ExportedProgram:
    with fxpress.installed():
        return torch.export.export(model.eval(), (torch.randn(2, 5, 16),))


def main() -> None:
    before, after, slipped = export(Attention()), export(Refactored()), export(Slipped())

    assert fxpress.graph_hash(before) == fxpress.graph_hash(after)
    assert fxpress.diff(before, after) == []
    print("refactored: the same program")

    assert fxpress.graph_hash(before) != fxpress.graph_hash(slipped)
    print("slipped:")
    for difference in fxpress.diff(after, slipped, limit=3):
        print(f"  {difference}")


if __name__ == "__main__":
    main()

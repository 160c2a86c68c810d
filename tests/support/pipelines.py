"""Models that are run in stages, and the function that each rank runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from fxpress import pipeline

VOCABULARY, WIDTH = 64, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.down(self.up(x).relu())


class Tied(nn.Module):
    """A transformer with tied embedding and head, which uses its inputs again at the end."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x) + tokens[..., None] * 0.01


def tied(layers: int = 4) -> ExportedProgram:
    """Return the program of `Tied` for any batch."""
    torch.manual_seed(0)
    example = torch.randint(0, VOCABULARY, (4, 8))
    return export(Tied(layers), (example,), dynamic_shapes={"tokens": {0: Dim("batch", min=1)}})


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    """Return the cross entropy."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def optimizer_of(parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer with state. Unlike Adam, it does not scale up tiny rounding errors."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def batches(steps: int, size: int = 8) -> list[tuple[Tensor, Tensor]]:
    """Return tokens and targets."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda: torch.randint(0, VOCABULARY, (size, 8), generator=generator)  # noqa: E731
    return [(draw(), draw()) for _ in range(steps)]


def trained_whole(program: ExportedProgram, steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """Return the losses and the state after training the entire program."""
    module = program.module()
    optimizer = optimizer_of(module.parameters())
    losses = []
    for tokens, target in batches(steps):
        optimizer.zero_grad()
        loss = loss_of(module(tokens), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, dict(module.state_dict())


def train(
    path: Path, schedule: str, steps: int, timeout: float = 60
) -> tuple[list[float], dict[str, Tensor]]:
    """Train the stages of a rank, and return the losses and the state."""
    stages = pipeline.load_stages(path, schedule)
    built = pipeline.build_schedule(schedule, stages, 4, loss_fn=loss_of, timeout=timeout)
    parameters = [each for stage in stages for each in stage.module.parameters()]
    optimizer = optimizer_of(parameters)
    losses = []
    has_first = any(stage.number == 0 for stage in stages)
    has_last = any(stage.number + 1 == stage.count for stage in stages)
    for tokens, target in batches(steps):
        optimizer.zero_grad()
        parts: list[Tensor] = []
        built.step(
            *([tokens] if has_first else []),
            **({"target": target, "losses": parts} if has_last else {}),
        )
        optimizer.step()
        losses.append(sum(part.item() for part in parts) / len(parts) if parts else 0.0)
    return losses, {n: v for stage in stages for n, v in stage.module.state_dict().items()}


def infer(path: Path, schedule: str, inputs: Any) -> Any:
    """Run a forward; on the last stage's rank, return the results in the program's structure."""
    stages = pipeline.load_stages(path, schedule)
    built = pipeline.build_schedule(schedule, stages, 4, timeout=60)
    first = any(stage.number == 0 for stage in stages)
    with torch.no_grad():
        given = built.step(*(inputs if first else ()))
    last = [stage for stage in stages if stage.number + 1 == stage.count]
    return last[0].results(given) if last else None

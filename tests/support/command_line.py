"""The command `fxpress` as a process, and a model with something of each kind for it to show."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import torch


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (self.linear(x),))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Block(), Block()
        self.scale = torch.nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x: torch.Tensor, flag: bool, *, bias: torch.Tensor) -> Any:
        y = self.second(self.first(x)) * self.scale + bias
        return (y, x.shape[0] * 2) if flag else y


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fxpress", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def assert_without_torch(*arguments: str) -> None:
    """The command ends with success, and has not imported torch."""
    script = "import sys; from fxpress._cli import app; status = app.run(sys.argv[1:])"
    script += "; sys.exit(9 if 'torch' in sys.modules else status)"
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

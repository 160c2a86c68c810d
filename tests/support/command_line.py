"""The command `fxpress` as a process, and a model for it to show."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram


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


def dynamic_program() -> ExportedProgram:
    """Return the model's program, with a symbolic size, and with writes to buffers as outputs."""
    batch = torch.export.Dim("batch", min=2, max=64)
    exported = torch.export.export(
        Model(),
        (torch.ones(3, 4), True),
        {"bias": torch.ones(4)},
        dynamic_shapes={"x": {0: batch}, "flag": None, "bias": None},
    )
    return exported.run_decompositions({})  # writes to buffers are outputs now


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fxpress", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def assert_without_torch(*arguments: str) -> None:
    """The command ends with success, and has imported neither torch nor sympy."""
    script = "import sys; from fxpress._tools.cli import app; status = app.run(sys.argv[1:])"
    script += "; sys.exit(9 if {'torch', 'sympy'} & {*sys.modules} else status)"
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def places_in(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a JSON document, as keys and indices."""
    yield place
    keys = list(value) if isinstance(value, dict) else []
    for key in range(len(value)) if isinstance(value, list) else keys:
        yield from places_in(value[key], (*place, key))

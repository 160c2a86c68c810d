"""`fxpress demo`: what fxpress does with a small transformer, and torch's time for the same."""

from __future__ import annotations

import functools
import io
import json
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from rich.live import Live
from rich.table import Table
from torch import Tensor, nn
from torch.export import ExportedProgram, unflatten
from torch.fx.passes.split_module import split_module

import fxpress
from fxpress._graphs.decompose.entry import run_decompositions
from fxpress._graphs.export.unlift import module as module_of
from fxpress._graphs.split.split_module import split_module as fast_split
from fxpress._graphs.unflatten.modules import unflatten as fast_unflatten
from fxpress._tools.cli.output import console
from fxpress._torch.capture import reset

_WIDTH = 32
_STAGES = 4


class Layer(nn.Module):  # type: ignore[misc]
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in range(2))
        self.mixed = nn.Linear(_WIDTH, 3 * _WIDTH)
        self.out = nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, length, width]; returns the same."""
        q, k, v = self.mixed(self.norms[0](x)).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):  # type: ignore[misc]
    """A small transformer."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, _WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(_WIDTH, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [batch, length]; returns [batch, length, 64]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Step(NamedTuple):
    """An operation and its times in seconds."""

    name: str
    torch: float
    ours: float


def _timed(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def _exported(model: nn.Module, inputs: tuple[Tensor, ...], strict: bool) -> ExportedProgram:
    reset()
    return torch.export.export(model, inputs, strict=strict)


def _faster_export(model: nn.Module, inputs: tuple[Tensor, ...], strict: bool) -> ExportedProgram:
    with fxpress.installed():
        return _exported(model, inputs, strict)


def steps(layers: int, report: Callable[[Step], None]) -> list[Step]:
    """Do each operation twice, by torch and by fxpress, and report it when it is done.

    Args:
        layers: of the model.
        report: called with each step.

    Raises:
        AssertionError: the results of both differ.
    """
    torch.manual_seed(0)
    model = Transformer(layers).eval()
    inputs = (torch.randint(0, 64, (2, 8)),)
    done: list[Step] = []

    def step(name: str, theirs: Callable[[], Any], ours: Callable[[], Any]) -> tuple[Any, Any]:
        theirs_seconds, expected = _timed(theirs)
        our_seconds, made = _timed(ours)
        done.append(Step(name, theirs_seconds, our_seconds))
        report(done[-1])
        return expected, made

    # What a process does once, such as imports, belongs to no step.
    small = Transformer(1).eval()
    for export in (_exported, _faster_export):
        run_decompositions(export(small, inputs, False)).run_decompositions()
        export(small, inputs, True)

    for strict in (False, True):
        name = f"export, {'strict' if strict else 'non-strict'}"
        expected, program = step(
            name,
            functools.partial(_exported, model, inputs, strict),
            functools.partial(_faster_export, model, inputs, strict),
        )
        assert str(expected) == str(program), "the programs differ"
    files = (io.BytesIO(), io.BytesIO())
    step(
        "save",
        lambda: torch.export.save(program, files[0]),
        lambda: fxpress.save(program, files[1]),
    )
    data = files[1].getvalue()
    expected, loaded = step(
        "load", lambda: torch.export.load(io.BytesIO(data)), lambda: fxpress.load(data)
    )
    assert str(expected) == str(loaded), "the loaded programs differ"
    expected, decomposed = step(
        "run_decompositions",
        loaded.run_decompositions,
        lambda: run_decompositions(loaded),
    )
    assert str(expected) == str(decomposed), "the decomposed programs differ"
    _, flat = step("ExportedProgram.module", loaded.module, lambda: module_of(loaded))
    place = {node: i * _STAGES // len(flat.graph.nodes) for i, node in enumerate(flat.graph.nodes)}
    expected, stages = step(
        f"split_module, {_STAGES} stages",
        lambda: split_module(flat, None, place.__getitem__),
        lambda: fast_split(flat, None, place.__getitem__),
    )
    assert expected.code == stages.code, "the stages differ"
    expected, tree = step("unflatten", lambda: unflatten(loaded), lambda: fast_unflatten(loaded))
    with torch.no_grad():
        tree(*inputs), expected(*inputs)
        expected, made = step("forward", lambda: expected(*inputs), lambda: tree(*inputs))
        assert torch.equal(expected, made), "the results differ"
    return done


def _table(done: list[Step]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "torch", "fxpress", "times as fast"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, theirs, ours in done:
        table.add_row(
            name, f"{theirs * 1e3:,.1f} ms", f"{ours * 1e3:,.1f} ms", f"{theirs / ours:.1f}"
        )
    return table


def show(layers: int, as_json: bool) -> None:
    """Print the times of both for each operation on a transformer of some layers."""
    torch.set_num_threads(1)  # so small a model gains nothing from threads
    if as_json:
        done = steps(layers, lambda _: None)
        print(json.dumps([step._asdict() for step in done], indent=2))
        return
    out = console()
    out.print(f"a transformer of {layers} layers; every result is compared with torch's")
    shown: list[Step] = []
    with Live(_table(shown), console=out, auto_refresh=False) as live:

        def report(step: Step) -> None:
            shown.append(step)
            live.update(_table(shown), refresh=out.is_terminal)

        steps(layers, report)

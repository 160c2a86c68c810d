"""Use a loaded program in all the ways in which users use it."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from fxpress import archive
from fxpress.split_module import split_module
from fxpress.unflatten import unflatten as unflattened

Leaves = list[Any]


def arguments_of(
    program: ExportedProgram, leaves: Leaves
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments with the shapes that the program expects."""
    args, kwargs = pytree.tree_unflatten(leaves, program.call_spec.in_spec)
    return args, kwargs


def _call(callee: Callable[..., Any], program: ExportedProgram, leaves: Leaves) -> None:
    args, kwargs = arguments_of(program, leaves)
    callee(*args, **kwargs)


def _look(module: torch.nn.Module) -> None:
    repr(module)
    str(module)
    for part in module.modules():
        if isinstance(part, torch.fx.GraphModule) or hasattr(part, "graph"):
            part.print_readable(print_output=False)
            part.graph.python_code("self")
            getattr(part, "code", None)
            str(part.graph)


def _copies(module: torch.nn.Module) -> list[torch.nn.Module]:
    made = [copy.deepcopy(module)]
    with contextlib.suppress(Exception):
        made.append(pickle.loads(pickle.dumps(module)))
    return made


def module(program: ExportedProgram, leaves: Leaves) -> None:
    for check_guards in (True, False):
        made = program.module(check_guards=check_guards)
        with contextlib.suppress(Exception):
            _call(made, program, leaves)
        _look(made)
        for each in _copies(made):
            _call(each, program, leaves)


def decompose(program: ExportedProgram, leaves: Leaves) -> None:
    made = program.run_decompositions()
    _look(made.graph_module)
    _call(made.module(), program, leaves)


def look(program: ExportedProgram, leaves: Leaves) -> None:
    repr(program)
    str(program)
    _look(program.graph_module)
    with contextlib.suppress(Exception):
        program.graph_module(*leaves)
    for each in _copies(program.graph_module):
        with contextlib.suppress(Exception):
            _look(each)
    copy.deepcopy(program)


def folder(program: ExportedProgram, leaves: Leaves) -> None:
    with tempfile.TemporaryDirectory() as place:
        program.graph_module.to_folder(place)


def unflatten(program: ExportedProgram, leaves: Leaves) -> None:
    for make in (unflattened, torch.export.unflatten):
        with contextlib.suppress(Exception):
            made = make(program)
            with contextlib.suppress(Exception):
                _call(made, program, leaves)
            _look(made)
            # A copy of torch's module contains a copy of the program's FakeTensorMode. torch frees
            # the copy's weak references to storages twice, which crashes the process.
            if make is unflattened:
                for each in _copies(made):
                    _call(each, program, leaves)


def interpret(program: ExportedProgram, leaves: Leaves) -> None:
    made = program.module()
    torch.fx.Interpreter(made).run(*leaves)


def split(program: ExportedProgram, leaves: Leaves) -> None:
    made = program.module()
    for graph_module in (made, program.graph_module):
        positions = {node: i // 3 for i, node in enumerate(graph_module.graph.nodes)}
        parts = split_module(graph_module, None, positions.__getitem__)
        _look(parts)
        with contextlib.suppress(Exception):
            parts(*leaves)


def save(program: ExportedProgram, leaves: Leaves) -> None:
    for write, read in (
        (archive.save, archive.load),
        (torch.export.save, archive.load),
        (archive.save, torch.export.load),
    ):
        with contextlib.suppress(Exception):
            buffer = io.BytesIO()
            write(program, buffer)
            if read is archive.load:  # torch.export.load may run code in a file
                again = read(io.BytesIO(buffer.getvalue()))
                _call(again.module(), program, leaves)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "a.pt2"
        archive.save(program, path, weights="safetensors")
        archive.load(path)


def trace(program: ExportedProgram, leaves: Leaves) -> None:
    torch.fx.symbolic_trace(program.module())


def compiled(program: ExportedProgram, leaves: Leaves) -> None:
    torch._dynamo.reset()
    for make in (lambda: program.module(), lambda: unflattened(program)):
        with contextlib.suppress(Exception):
            _call(torch.compile(make(), backend="eager"), program, leaves)


def exported(program: ExportedProgram, leaves: Leaves) -> None:
    args, kwargs = arguments_of(program, leaves)
    for strict in (False, True):
        with contextlib.suppress(Exception):
            torch.export.export(program.module(), args, kwargs, strict=strict).module()


QUICK = (module, look, decompose, unflatten, interpret, split, save)
USES = (*QUICK, folder, trace, compiled, exported)


def use(program: ExportedProgram, leaves: Leaves, uses: Any = USES) -> None:
    """Use a program in every way; errors are allowed."""
    for each in uses:
        with contextlib.suppress(Exception):
            each(program, leaves)

"""`fxpress convert`: write the program of a file into another file, in today's form."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch

import fxpress
from fxpress._base.errors import Error
from fxpress._base.observing.text import printable
from fxpress._tools.cli.cast import with_weights_of
from fxpress._tools.cli.inputs import example_inputs_of
from fxpress._tools.cli.output import naming, working
from fxpress._tools.inspect.summary import summarize

Weights = Literal["inline", "safetensors", "none"]


class ConversionError(Error):
    """A file cannot be converted as it was asked for."""


def convert(
    source: Path,
    target: Path,
    *,
    weights: Weights,
    dtype: str | None,
    example_inputs: Path | None,
    allow_pickle: bool,
) -> None:
    """Read a program and write it again; the target is replaced when it is complete.

    Args:
        source: the file to read, of this version of the format or of an older one.
        target: the file to write; it may be the same.
        weights: where their values go: into the file, into a safetensors file beside it, nowhere.
        dtype: the name of the type in which floating-point weights are stored; where they are
            used, they are cast to the type that they had. None: as they are.
        example_inputs: a file of `torch.save` with the arguments, (args, kwargs); None: those that
            the source has.
        allow_pickle: unpickle objects in the source that only that can read: they may run code.

    Raises:
        OSError: a file cannot be read or written.
        fxpress.Error: the source is damaged, it holds more than one program, its weights cannot be
            cast, or `example_inputs` have another structure than the program's.
    """
    _check_is_alone(source)
    extra: dict[str, Any] = {}
    with working(f"reading {source}"):
        try:
            program = fxpress.load(source, extra_files=extra, allow_pickle=allow_pickle)
        except Error as error:
            raise ConversionError(f"{source}: {printable(str(error))}") from error
    if dtype is not None:
        with_weights_of(program, _dtype(dtype))
    if example_inputs is not None:
        program.example_inputs = example_inputs_of(example_inputs, program)
    with working(f"writing {target}"):
        fxpress.save(program, str(target), extra_files=extra, weights=weights)


def _check_is_alone(source: Path) -> None:
    """Refuse a file with more than one program: the others would be lost."""
    with naming(source):
        summary = summarize(source)
    others = [each.name for each in summary.programs if each.name != "model"] + summary.compiled
    if others:
        raise ConversionError(
            f"{source}: besides the program 'model' it holds {printable(others[0])!r}, which would "
            "be lost: load it with fxpress.archive.load_pt2"
        )


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ConversionError(f"{name!r} is no floating-point type of torch, such as bfloat16")
    return found

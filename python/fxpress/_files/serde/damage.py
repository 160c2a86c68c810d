"""Convert the errors that damaged files cause into SerializeError.

fxpress, torch, sympy, json and pickle raise various exceptions for unexpected values. All code that
processes values of a file runs inside the context manager `damage_is_named`.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.export import ExportedProgram

from fxpress._base.errors import Error, is_about_input, printable_error
from fxpress._files.format.torch_facts import refusal_text
from fxpress._torch import serde as compat


class UnknownNameError(compat.SerializeError):
    """A file uses an operator or class `name` that this process has not registered or imported."""

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.name = name


class RefusedOperatorError(compat.SerializeError):
    """A file calls the operator `target`, which fxpress refuses by default because of `reason`."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(refusal_text(target, reason))
        self.target, self.reason = target, reason


class NeedsPickleError(compat.SerializeError):
    """`record` needs unpickling, which is not allowed; `name` is the refused class, or ""."""

    def __init__(self, text: str, record: str = "", name: str = "") -> None:
        super().__init__(text)
        self.record, self.name = record, name


def _is_unknown_name(error: BaseException | None) -> bool:
    """Return whether the error or one of its causes is an UnknownNameError."""
    while error is not None and not isinstance(error, UnknownNameError):
        error = error.__cause__
    return error is not None


@contextmanager
def add_left_out_reason(reason: str | None) -> Iterator[None]:
    """If the block raises UnknownNameError, add `reason`: why example inputs were left out."""
    try:
        yield
    except compat.SerializeError as e:
        # Unpickling the example inputs would have imported modules, which may register the name.
        if reason is None or not _is_unknown_name(e):
            raise
        raise compat.SerializeError(
            f"{e} Example inputs were not loaded, which may register the name: {reason}"
        ) from e


# The exceptions that a wrong value can cause. OSError, Warning, KeyboardInterrupt and MemoryError
# have other causes.
OF_WRONG_VALUES = (
    *(ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError),
    *(LookupError, RuntimeError, TypeError, ValueError),
    *(pickle.PickleError, struct.error, zipfile.BadZipFile, zlib.error),
)
# Exceptions that pass through unchanged, although they derive from `OF_WRONG_VALUES`.
_UNCHANGED = (Error, torch.OutOfMemoryError)


class InvalidProgramError(compat.SerializeError, compat.SpecViolationError):  # type: ignore[misc]
    """A program is not valid: torch's verifier rejects it."""


@contextmanager
def damage_is_named(
    what: str = "the program", kind: type[compat.SerializeError] = compat.SerializeError
) -> Iterator[None]:
    """Convert exceptions for wrong values in the block to `kind`, with a text "<what> is damaged".

    The block must only process values of the file, because exceptions of other code would be
    converted, too.
    """
    try:
        yield
    except _UNCHANGED:
        raise
    except compat.SpecViolationError as e:
        raise InvalidProgramError(str(e)) from printable_error(e)
    except OF_WRONG_VALUES as e:
        if not is_about_input(e):
            raise
        raise kind(f"{what} is damaged: {e!r}") from printable_error(e)


def validate(program: ExportedProgram) -> None:
    """Run torch's verifier; raise InvalidProgramError with the verifier's message if it fails."""
    try:
        program.validate()
    except compat.SpecViolationError as e:
        raise InvalidProgramError(str(e)) from e

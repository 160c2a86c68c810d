"""Convert the errors of damaged or wrong files into one type of exception.

Code of fxpress, torch, sympy, json and pickle processes the values of a file, and raises different
errors for unexpected values. One context manager surrounds all of this code.
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
    """A file names an operator or class, `name`, that is not registered or imported."""

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.name = name


class RefusedOperatorError(compat.SerializeError):
    """A file names an operator, `target`, that it may not call, for a `reason`."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(refusal_text(target, reason))
        self.target, self.reason = target, reason


class NeedsPickleError(compat.SerializeError):
    """A `record` needs unpickling, which is not allowed; `name` is a class or function, or ""."""

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
    """Add the reason why a part was left out to errors about unknown names in the block."""
    try:
        yield
    except compat.SerializeError as e:
        # Unpickling an object imports the module of its class, which might register the name.
        if reason is None or not _is_unknown_name(e):
            raise
        raise compat.SerializeError(
            f"{e} Reading the part that was left out may register the name: {reason}"
        ) from e


# The exceptions that a wrong value can cause. Errors of the system, warnings as errors, signals and
# a lack of memory are not included.
OF_WRONG_VALUES = (
    *(ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError),
    *(LookupError, RuntimeError, TypeError, ValueError),
    *(pickle.PickleError, struct.error, zipfile.BadZipFile, zlib.error),
)
# Exceptions that pass unchanged: errors of fxpress, including InternalError, and exhausted memory
# of a device, which callers handle.
_UNCHANGED = (Error, torch.OutOfMemoryError)


class InvalidProgramError(compat.SerializeError, compat.SpecViolationError):  # type: ignore[misc]
    """A program is not valid: torch's verifier rejects it."""


@contextmanager
def damage_is_named(
    what: str = "the program", kind: type[compat.SerializeError] = compat.SerializeError
) -> Iterator[None]:
    """Convert errors in the block to SerializeError; the block may only process read values."""
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
    """Check a program with torch's verifier; InvalidProgramError has the verifier's message."""
    try:
        program.validate()
    except compat.SpecViolationError as e:
        raise InvalidProgramError(str(e)) from e

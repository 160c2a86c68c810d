"""Turn the errors of damaged or wrong files into one kind of exception.

The values of a file go through code of fxpress, torch, sympy, json and pickle. Each raises errors
of its own for values that it does not expect. One context manager surrounds all of this code.
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
    """A file names an operator or a class, `name`, that is not registered or imported."""

    def __init__(self, text: str, name: str = "") -> None:
        super().__init__(text)
        self.name = name


class RefusedOperatorError(compat.SerializeError):
    """A file names an operator that it may not call, `target`, for a `reason`."""

    def __init__(self, target: str, reason: str) -> None:
        super().__init__(refusal_text(target, reason))
        self.target, self.reason = target, reason


class NeedsPickleError(compat.SerializeError):
    """A `record` needs unpickling, which was not allowed; `name` is a class or function, or ""."""

    def __init__(self, text: str, record: str = "", name: str = "") -> None:
        super().__init__(text)
        self.record, self.name = record, name


def _is_of_a_name(error: BaseException | None) -> bool:
    """Return whether an UnknownNameError is the error or one of its causes."""
    while error is not None and not isinstance(error, UnknownNameError):
        error = error.__cause__
    return error is not None


@contextmanager
def says_what_was_left_out(reason: str | None) -> Iterator[None]:
    """Add the reason for a part that was left out to errors about unknown names in the block."""
    try:
        yield
    except compat.SerializeError as e:
        # Unpickling an object imports the module of its class, which may register the name.
        if reason is None or not _is_of_a_name(e):
            raise
        raise compat.SerializeError(
            f"{e} Reading the part that was left out may register the name: {reason}"
        ) from e


# The exceptions that a wrong value leads to. Errors of the system, warnings that are errors,
# interrupts and a lack of memory are not among them.
OF_WRONG_VALUES = (
    *(ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError),
    *(LookupError, RuntimeError, TypeError, ValueError),
    *(pickle.PickleError, struct.error, zipfile.BadZipFile, zlib.error),
)
# Exceptions that pass unchanged: errors of fxpress, including its own bugs, and a device without
# memory, which callers know how to treat.
_SAID = (Error, torch.OutOfMemoryError)


class InvalidProgramError(compat.SerializeError, compat.SpecViolationError):  # type: ignore[misc]
    """A program is not valid: torch's verifier refuses it."""


@contextmanager
def damage_is_named(
    what: str = "the program", kind: type[compat.SerializeError] = compat.SerializeError
) -> Iterator[None]:
    """Raise errors of the block as SerializeError; it may only process values that were read."""
    try:
        yield
    except _SAID:
        raise
    except compat.SpecViolationError as e:
        raise InvalidProgramError(str(e)) from printable_error(e)
    except OF_WRONG_VALUES as e:
        if not is_about_input(e):
            raise
        raise kind(f"{what} is damaged: {e!r}") from printable_error(e)


def validate(program: ExportedProgram) -> None:
    """Check a program by torch's verifier; InvalidProgramError, with its message, if it refuses."""
    try:
        program.validate()
    except compat.SpecViolationError as e:
        raise InvalidProgramError(str(e)) from e

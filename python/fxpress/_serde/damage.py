"""What is wrong with something that was read, as one kind of exception.

The values of a file go through code of fxpress, torch, sympy, json and pickle, and each raises
what it likes for values that it does not expect. One context manager stands around all of it.
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

from fxpress._errors import Error
from fxpress._torch import serde as compat

# What a wrong value leads to. Errors of the system, warnings that are errors and interrupts are
# none of them.
OF_WRONG_VALUES = (
    *(ArithmeticError, AssertionError, AttributeError, BufferError, EOFError, ImportError),
    *(LookupError, MemoryError, RuntimeError, TypeError, ValueError),
    *(pickle.PickleError, struct.error, zipfile.BadZipFile, zlib.error),
)
# They say themselves what they are: errors of fxpress, its own bugs among them, and a device
# without room, which callers know how to treat.
_SAID = (Error, torch.OutOfMemoryError)


class InvalidProgramError(compat.SerializeError, compat.SpecViolationError):  # type: ignore[misc]
    """A program is not valid: torch's verifier refuses it."""


@contextmanager
def damage_is_named(
    what: str = "the program", kind: type[compat.SerializeError] = compat.SerializeError
) -> Iterator[None]:
    """What goes wrong with values that were read is a SerializeError, with the error as its cause.

    Around code that only sees such values, and nothing of the caller's: his file objects are read
    before, and his arguments checked.

    Args:
        what: is read, for the message.
        kind: of the exception.
    """
    try:
        yield
    except _SAID:
        raise
    except compat.SpecViolationError as e:
        raise InvalidProgramError(str(e)) from e
    except OF_WRONG_VALUES as e:
        raise kind(f"{what} is damaged: {e!r}") from e


def validate(program: ExportedProgram) -> None:
    """Torch's verifier looks at a program; an `InvalidProgramError` says what it has found."""
    try:
        program.validate()
    except compat.SpecViolationError as e:
        raise InvalidProgramError(str(e)) from e

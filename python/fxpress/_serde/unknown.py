"""Names in a file that this process does not know, and how it may come to know them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fxpress._torch import serde as compat


class UnknownNameError(compat.SerializeError):
    """A file names an operator or a class that is not registered or imported."""


def _is_of_a_name(error: BaseException | None) -> bool:
    """Whether a name is the cause, however many errors say where it stands."""
    while error is not None and not isinstance(error, UnknownNameError):
        error = error.__cause__
    return error is not None


@contextmanager
def says_what_was_left_out(reason: str | None) -> Iterator[None]:
    """Errors about names say what else was not read, and how to read it.

    To unpickle an object is to import the module of its class, which may register what is missing.

    Args:
        reason: why a part of the program was left out; None when everything is there.

    Raises:
        SerializeError: as from inside, with the reason.
    """
    try:
        yield
    except compat.SerializeError as e:
        if reason is None or not _is_of_a_name(e):
            raise
        raise compat.SerializeError(f"{e} What was left out may bring it: {reason}") from e

"""Report names in a file that this process does not know, and hint at a way to register them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fxpress._torch import serde as compat


class UnknownNameError(compat.SerializeError):
    """A file names an operator or a class that is not registered or imported."""


def _is_of_a_name(error: BaseException | None) -> bool:
    """Return whether an UnknownNameError is the error or one of its causes."""
    while error is not None and not isinstance(error, UnknownNameError):
        error = error.__cause__
    return error is not None


@contextmanager
def says_what_was_left_out(reason: str | None) -> Iterator[None]:
    """Add the reason for a part that was left out to errors about unknown names in the block.

    Unpickling an object imports the module of its class, which may register the unknown name.
    """
    try:
        yield
    except compat.SerializeError as e:
        if reason is None or not _is_of_a_name(e):
            raise
        raise compat.SerializeError(
            f"{e} Reading the part that was left out may register the name: {reason}"
        ) from e

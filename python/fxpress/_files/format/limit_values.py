"""Define `Limits`, the limits on the cost of reading a file. This module does not import torch."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits on the cost of reading a file, so that a small file cannot cost much.

    Real programs stay far below the defaults. A file that exceeds a limit raises `LimitError`.
    torch does not have such limits.

    Attributes:
        memory: bytes that a load may use for unpacked records, for tensors of zeros that the file
            does not store, and for objects, whose size is estimated.
        memory_per_byte: bytes that a load may use in addition, for each byte of the file.
        elements: items in a tree of example inputs or in a tree spec. An item that several
            containers share counts once for each container.
        depth: levels of nested values, graphs, trees or brackets. Threads with a small stack have a
            lower limit.
        digits: decimal digits of a number in a symbolic expression.
        terms: numbers, symbols and functions in one symbolic expression.
        seconds: processor time that a load may spend on symbolic expressions, in its thread.
        seconds_per_megabyte: additional processor time for each megabyte (2**20 bytes) of the file.

    Raises:
        ValueError: a limit is not a number, or is negative.

    Example:
        >>> from fxpress import archive
        >>> fxpress.save(program, "model.pt2")
        >>> fxpress.load("model.pt2", limits=archive.Limits(depth=2))
        Traceback (most recent call last):
            ...
        fxpress.LimitError: ...
    """

    memory: int = 192 << 20
    memory_per_byte: float = 7.0
    elements: int = 1 << 20
    depth: int = 500
    digits: int = 40
    terms: int = 2048
    seconds: float = 1.5
    seconds_per_megabyte: float = 8.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
                raise ValueError(f"expected {name} to be a non-negative number, got {value!r}")


DEFAULT = Limits()

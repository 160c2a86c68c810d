"""What is raised for a program that cannot be cut as it was asked for."""

from __future__ import annotations

from fxpress._base.errors import Error


class StageError(Error):
    """A program cannot be cut into stages in this way. torch has no such class.

    Example:
        >>> from fxpress import pipeline
        >>> try:
        ...     pipeline.plan(program, 10_000)
        ... except pipeline.StageError as error:
        ...     print("cannot make 10000 stages" in str(error))
        True
    """

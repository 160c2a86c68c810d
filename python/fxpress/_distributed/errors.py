"""Define errors for programs that cannot be cut, and for stages that cannot be loaded or run."""

from __future__ import annotations

from fxpress._base.errors import Error


class StageError(Error):
    """A program cannot be cut into the requested stages. torch has no such class.

    Example:
        >>> from fxpress import pipeline
        >>> try:
        ...     pipeline.plan(program, 10_000)
        ... except pipeline.StageError as error:
        ...     print("cannot make 10000 stages" in str(error))
        True
    """


class PipelineError(Error):
    """Stages do not load or do not belong together, or a rank has failed. torch has no such class.

    Example:
        >>> from fxpress import pipeline
        >>> manifest = pipeline.save_stages(program, "two_stages", 2)
        >>> try:
        ...     pipeline.load_stage("two_stages", 7)
        ... except pipeline.PipelineError as error:
        ...     print(error)
        stage 7 does not exist: two_stages has stages 0 to 1
    """

    __module__ = "fxpress.pipeline"


def described(error: BaseException) -> str:
    """Return "TYPE: LINE" with the first line of an error's text; omit the type PipelineError."""
    line = next(iter(str(error).strip().splitlines()), "")
    return line if isinstance(error, PipelineError) else f"{type(error).__name__}: {line}"

"""Define the base class of fxpress's exceptions, and exceptions that do not need torch.

`SerializeError` is in `fxpress._torch.serde`, because it derives from torch's class; `ArchiveError`
is in `fxpress._files.errors`. The package `fxpress` exports the public classes. Their `__module__`
is "fxpress", so that a pickled exception can be loaded even if a later release moves its class.
"""

from __future__ import annotations

from types import TracebackType
from typing import TypeVar

from fxpress._base.observing.text import printable_lines

_E = TypeVar("_E", bound=BaseException)
_MOST_CHARACTERS = 10_000  # longer messages, for example with long names from a file, are cut


class Error(Exception):
    """The base class of all exception classes of fxpress.

    For mistakes of the caller (arguments of a wrong type, a missing file), fxpress raises Python's
    exceptions, or the exceptions that torch raises. Control characters in messages are escaped,
    because text from a file could otherwise send commands to a terminal. torch has no such class.

    Example:
        >>> import io
        >>> try:
        ...     fxpress.load(io.BytesIO(b"no archive"))
        ... except fxpress.Error as error:
        ...     print(type(error).__name__)
        ArchiveError
    """

    __module__ = "fxpress"

    def __init__(self, *args: object) -> None:
        super().__init__(*map(_printable_argument, args))


class UnsupportedError(Error, NotImplementedError, RuntimeError):
    """The input uses something that fxpress does not implement.

    fxpress raises this error before it changes anything. The message names the feature, and may
    name the node and a remedy. With ``fxpress.install(on_unsupported="torch")``, torch runs the
    call instead. torch has no such class.

    Example:
        >>> from fxpress.unflatten import unflatten
        >>> module = unflatten(torch.export.export(torch.nn.Dropout().eval(), (x,)))
        >>> try:
        ...     module.train()
        ... except fxpress.UnsupportedError as error:
        ...     print(str(error).partition(":")[0])
        Calling train() is not supported
    """

    __module__ = "fxpress"


class UnsupportedTorchError(UnsupportedError, ImportError):
    """The installed torch lacks an attribute that a module of fxpress needs.

    The import of the module raises this error. ``fxpress.install()`` skips the module, so torch's
    functions remain in use. torch has no such class.

    Example:
        >>> try:
        ...     from fxpress import nn_module
        ... except fxpress.UnsupportedTorchError as error:  # with an unknown version of torch
        ...     print(error)
    """

    __module__ = "fxpress"


class InternalError(Error, RuntimeError):
    """An invariant of fxpress does not hold. This is a bug in fxpress, not a mistake of the caller.

    Please report the error. If native code raises it, the message contains the ``file:line`` of the
    failed check. torch has no such class.

    Example:
        >>> try:
        ...     program_hash = fxpress.graph_hash(program)
        ... except fxpress.InternalError as error:
        ...     print(f"please report: {error}")
    """

    __module__ = "fxpress"


class NoRendererError(RuntimeError):
    """Neither Graphviz nor graphviz-pure, which render pictures, is installed."""


def _printable_argument(value: object) -> object:
    if not isinstance(value, str):
        return value
    if len(value) > _MOST_CHARACTERS:
        value = f"{value[: _MOST_CHARACTERS // 2]} ... {value[-_MOST_CHARACTERS // 2 :]}"
    return printable_lines(value)


def printable_error(error: _E) -> _E:
    """Escape control characters in the messages of an exception and its causes; return `error`."""
    cause: BaseException | None = error
    while cause is not None:
        cause.args = tuple(map(_printable_argument, cause.args))
        cause = cause.__cause__ or cause.__context__
    return error


def is_about_input(error: BaseException) -> bool:
    """Return whether an error may be due to the input, not to low memory or a signal handler."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or _is_from_handler(cause.__traceback__):
            return False
        cause = cause.__cause__
    return True


def _is_from_handler(at: TracebackType | None) -> bool:
    """Return whether a signal handler raised. Its arguments include the frame it interrupted."""
    while at is not None:
        interrupted = at.tb_frame.f_back
        for value in [*at.tb_frame.f_locals.values()] if interrupted is not None else ():
            if any(each is interrupted for each in (value if type(value) is tuple else (value,))):
                return True
        at = at.tb_next
    return False

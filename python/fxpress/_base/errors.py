"""The base class of fxpress's exceptions, and the exceptions that do not need torch.

`SerializeError` is in `fxpress._torch.serde`, because it derives from torch's; `ArchiveError` is in
`fxpress._files.errors`. `fxpress` exports all of them, and is the module that pickles name.
"""


class Error(Exception):
    """The base class of all exception classes of fxpress.

    For mistakes of the caller (arguments of a wrong type, a missing file), fxpress raises
    exceptions of Python or of the kind that torch raises. torch has no such class.

    Example:
        >>> import io
        >>> try:
        ...     fxpress.load(io.BytesIO(b"no archive"))
        ... except fxpress.Error as error:
        ...     print(type(error).__name__)
        ArchiveError
    """

    __module__ = "fxpress"


class UnsupportedError(Error, NotImplementedError, RuntimeError):
    """The input uses something that fxpress does not implement.

    It is raised before anything is changed. The message names the node, the feature and the
    remedy; ``fxpress.install(on_unsupported="torch")`` hands such calls to torch instead. torch has
    no such class.

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
    """The installed torch lacks what a module of fxpress needs.

    It is raised when the module is imported. ``fxpress.install()`` leaves to torch what the module
    would replace. torch has no such class.

    Example:
        >>> try:
        ...     from fxpress import nn_module
        ... except fxpress.UnsupportedTorchError as error:  # of a torch it does not know
        ...     print(error)
    """

    __module__ = "fxpress"


class InternalError(Error, RuntimeError):
    """An invariant of fxpress does not hold. This is a bug of fxpress, never the caller's.

    The message carries the ``file:line`` of the check that failed. Please report it. torch has no
    such class.

    Example:
        >>> try:
        ...     program_hash = fxpress.graph_hash(program)
        ... except fxpress.InternalError as error:
        ...     print(f"please report: {error}")
    """

    __module__ = "fxpress"


class NoRendererError(RuntimeError):
    """There is no program that draws pictures."""

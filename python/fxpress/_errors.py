"""The base of fxpress's own exceptions, and those that need nothing of torch.

`SerializeError` is in `fxpress._torch.serde`, for it is also torch's; `ArchiveError` in
`fxpress._archive.errors`. All are exported by `fxpress`, which is the module that pickles name.
"""


class Error(Exception):
    """Every exception of a class of fxpress's own is one.

    What the caller did wrong (arguments of a wrong type, a file that is not there) is an exception
    of Python or of the kind that torch raises instead.
    """

    __module__ = "fxpress"


class UnsupportedError(Error, NotImplementedError, RuntimeError):
    """The input uses something that fxpress does not implement.

    Raised before anything is changed. The message names the node, the feature and the way out;
    ``fxpress.install(on_unsupported="torch")`` hands such calls to torch instead.
    """

    __module__ = "fxpress"


class InternalError(Error, RuntimeError):
    """An invariant of fxpress does not hold: a bug of ours, never the caller's.

    The message carries the ``file:line`` of the check that failed. Please report it.
    """

    __module__ = "fxpress"

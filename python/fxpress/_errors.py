"""The two exceptions that are fxpress's own; everything else is raised as torch raises it."""


class UnsupportedError(NotImplementedError, RuntimeError):
    """The input uses something that fxpress does not implement.

    Raised before anything is changed. The message names the node, the feature and the way out;
    ``fxpress.install(on_unsupported="torch")`` hands such calls to torch instead.
    """


class InternalError(RuntimeError):
    """An invariant of fxpress does not hold: a bug of ours, never the caller's.

    The message carries the ``file:line`` of the check that failed. Please report it.
    """

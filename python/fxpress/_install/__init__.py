"""`install()` and `uninstall()`: fxpress in torch's place, for the whole process."""

from __future__ import annotations

import os

from fxpress import _native
from fxpress._base.signatures import expand_aliases
from fxpress._install.installation import Installation
from fxpress._install.stand_ins import Policy
from fxpress._install.table import ENTRIES

_installation = Installation(ENTRIES)


def _forget_lock() -> None:
    _installation.forget_lock()


os.register_at_fork(after_in_child=_forget_lock)


@expand_aliases
def install(*, on_unsupported: Policy = "raise") -> None:
    """Replace torch's functions and classes by fxpress's, in the whole process.

    Every module-level name that holds one of them is rebound: in the torch module that defines
    it (``torch.fx.passes.split_module``), and in every loaded module that imported it, under
    whatever name. Modules imported later get fxpress's from torch. Names held elsewhere (class
    attributes, closures, containers) stay as they are.

    Calls nest: the first one patches and the last ``uninstall`` restores. With the environment
    variable ``FXPRESS_DISABLE`` set to ``1``, ``true`` or ``yes`` at the first call, torch is left
    as it is. torch has no such function.

    Args:
        on_unsupported: what a replaced function does where fxpress raises
            :class:`fxpress.UnsupportedError`: ``"raise"`` lets it through; ``"torch"`` logs a
            warning (logger ``fxpress``) and calls torch's original, with all of torch itself in
            this thread until it returns. The latest call that is still open decides, in all
            threads. Calls to fxpress's own modules always raise.

    Raises:
        ValueError: ``on_unsupported`` is neither of the two.
        ImportError: a module of fxpress or torch does not load; nothing has been changed. A name
            that the installed torch does not have is not an error: the component that needs it
            stays torch's, and the logger ``fxpress`` says so once.

    Example:
        >>> fxpress.install()
        >>> exported = torch.export.export(model, (x,))  # torch's function, faster
        >>> fxpress.uninstall()
    """
    _installation.acquire(on_unsupported)


def uninstall() -> None:
    """Take back the latest open :func:`install`; the last one gives torch its own objects back.

    Names that modules took from torch meanwhile are restored too; names imported from fxpress
    are left alone. torch has no such function.

    Raises:
        RuntimeError: no ``install()`` is open. (A ``with installed()`` does not count: only its
            own exit ends it.)

    Example:
        >>> fxpress.install()
        >>> fxpress.uninstall()
    """
    _installation.release()


@expand_aliases
def installed(*, on_unsupported: Policy = "raise") -> _native.InstalledBlock:
    """Install fxpress for the length of a ``with`` block: :func:`install`, then :func:`uninstall`.

    Process-wide like them: other threads see it too. Blocks may nest and overlap in any order;
    each ends exactly its own installation. torch has no such function.

    Args:
        on_unsupported: what a replaced function does where fxpress raises
            :class:`fxpress.UnsupportedError`: ``"raise"`` lets it through; ``"torch"`` logs a
            warning and calls torch's original.

    Raises:
        ValueError: on entry: ``on_unsupported`` is neither of the two.
        ImportError: on entry: a module of fxpress or torch does not load.

    Example:
        >>> with fxpress.installed():
        ...     exported = torch.export.export(model, (x,))
        ...     fxpress.is_installed()
        True
        >>> fxpress.is_installed()
        False
    """
    return _installation.block(on_unsupported)


def is_installed() -> bool:
    """Return whether torch's names stand for fxpress's now.

    It is False where ``FXPRESS_DISABLE`` has left them. torch has no such function.

    Example:
        >>> fxpress.is_installed()
        False
    """
    return _installation.policy is not None


def policy() -> Policy | None:
    """Return the `on_unsupported` in force; None while torch is itself."""
    return _installation.policy


def replaced() -> dict[str, int]:
    """Return how many names of each module of torch stand for fxpress's now."""
    return _installation.replaced()

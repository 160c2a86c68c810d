"""`install()` and `uninstall()`: replace torch's functions by fxpress's in the entire process."""

from __future__ import annotations

from fxpress import _native
from fxpress._base.signatures import expand_aliases
from fxpress._install.installation import Installation
from fxpress._install.stand_ins import Policy
from fxpress._install.table import ENTRIES

_installation = Installation(ENTRIES)


@expand_aliases
def install(*, on_unsupported: Policy = "raise") -> None:
    """Replace torch's functions and classes by fxpress's in the entire process.

    Every module-level name that refers to a replaced object is rebound: in the torch module that
    defines the object (``torch.fx.passes.split_module``), and in every loaded module that has
    imported the object, under any name. Modules that are imported later get fxpress's objects from
    torch. References in class attributes, closures and containers do not change.

    Calls nest: the first one patches and the last ``uninstall`` restores. If the environment
    variable ``FXPRESS_DISABLE`` is ``1``, ``true`` or ``yes`` at the first call, nothing is
    replaced. torch has no such function.

    Args:
        on_unsupported: the action of a replaced function when fxpress raises
            :class:`fxpress.UnsupportedError`: ``"raise"`` propagates the error; ``"torch"`` logs a
            warning (logger ``fxpress``) and calls torch's original function. During this call, the
            thread uses torch's functions only. If several ``install`` calls are open, the argument
            of the latest applies to all threads. Direct calls of fxpress's modules always raise.

    Raises:
        ValueError: ``on_unsupported`` is neither ``"raise"`` nor ``"torch"``.
        ImportError: a module of fxpress or torch cannot be imported. Nothing has been changed. It
            is not an error if the installed torch lacks a name that a component of fxpress needs.
            Then torch's code for the component remains in use, and logger ``fxpress`` reports this.

    Example:
        >>> fxpress.install()
        >>> exported = torch.export.export(model, (x,))  # torch's function, faster
        >>> fxpress.uninstall()
    """
    _installation.acquire(on_unsupported)


def uninstall() -> None:
    """Undo the latest open :func:`install`. If it was the last open one, restore torch's objects.

    Names that modules imported from torch after ``install`` are restored too. Names that were
    imported from fxpress are not. torch has no such function.

    Raises:
        RuntimeError: no ``install()`` is open. This function does not end ``installed()`` blocks.

    Example:
        >>> fxpress.install()
        >>> fxpress.uninstall()
    """
    _installation.release()


@expand_aliases
def installed(*, on_unsupported: Policy = "raise") -> _native.InstalledBlock:
    """Install fxpress during a ``with`` block: :func:`install`, then :func:`uninstall`.

    fxpress replaces torch's objects for all threads of the process. Blocks may nest and overlap in
    any order; the end of a block undoes only the block's ``install``. torch has no such function.

    Args:
        on_unsupported: the action of a replaced function when fxpress raises
            :class:`fxpress.UnsupportedError`: ``"raise"`` propagates the error; ``"torch"`` logs a
            warning and calls torch's original.

    Raises:
        ValueError: on entry: ``on_unsupported`` is neither ``"raise"`` nor ``"torch"``.
        ImportError: on entry: a module of fxpress or torch cannot be imported.

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
    """Return whether torch's names refer to fxpress's objects now.

    The result is False if ``FXPRESS_DISABLE`` was set when `install` was called. torch has no such
    function.

    Example:
        >>> fxpress.is_installed()
        False
    """
    return _installation.policy is not None


def policy() -> Policy | None:
    """Return the argument `on_unsupported` that is in effect; None while nothing is replaced."""
    return _installation.policy


def replaced() -> dict[str, int]:
    """Return, for each module of torch, how many names refer to fxpress's objects now."""
    return _installation.replaced()

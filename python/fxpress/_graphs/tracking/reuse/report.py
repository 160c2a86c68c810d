"""Report which calls of modules the last capture repeated, and why it traced other calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fxpress import _native
from fxpress._base.deprecation import renamed


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module in a capture."""

    path: str  # the path of the module, as the program reads it
    kind: str  # the name of the module's class
    # The path of the module whose earlier call was repeated; None if this call was traced.
    instantiated_from: str | None
    reason: str  # why this call was traced, in one line; empty if it was not traced
    stamped_from = renamed("stamped_from", "instantiated_from")

    def __str__(self) -> str:
        what = f"traced: {self.reason}"
        if self.instantiated_from is not None:
            what = f"instantiated from {self.instantiated_from}"
        return f"{self.path} ({self.kind}) {what}"


@dataclass
class ReuseReport:
    """A report on how a capture handled calls of modules. Its `str()` has one line for each call.

    torch has no such class.

    Attributes:
        calls: the calls in order, except those inside repeated calls.

    Example:
        >>> from fxpress import functional_export
        >>> with fxpress.installed():
        ...     strict = torch.export.export(model, (x,), strict=True)
        >>> report = functional_export.reuse_report()
        >>> report.calls[0].kind, report.calls[0].reason
        ('Sequential', 'no other module is equivalent')
    """

    calls: list[ModuleCall] = field(default_factory=list)
    stamped = renamed("stamped", "instantiated")

    @property
    def instantiated(self) -> list[ModuleCall]:
        """The calls that repeated an earlier call."""
        return [call for call in self.calls if call.instantiated_from is not None]

    def add(self, variable: Any, origin: Any, reason: str) -> None:
        """Add a call that repeats a call of `origin`, or (if None) was traced for `reason`."""
        source = None if origin is None else _path(origin)
        kind = type(variable.value).__name__
        self.calls.append(ModuleCall(_path(variable), kind, source, reason))

    def __str__(self) -> str:
        lines = [
            f"{len(self.instantiated)} of {len(self.calls)} calls of modules were instantiated"
        ]
        return "\n".join([*lines, *map(str, self.calls)])


def _path(variable: Any) -> str:
    path: str = _native.path_without_tables(variable.get_nn_module_stack_source().name)
    return path


_last = ReuseReport()


def begin() -> ReuseReport:
    """Create the report of a new capture, which `reuse_report` returns from now on."""
    global _last
    _last = ReuseReport()
    return _last


def reuse_report() -> ReuseReport:
    """Return the report on the calls of modules in the last capture of this process.

    The report is empty before the first capture. torch has no such function.

    Example:
        >>> from fxpress.functional_export import reuse_report
        >>> with fxpress.installed():
        ...     exported = torch.export.export(model, (x,), strict=True)
        >>> len(reuse_report().calls) > 0
        True
    """
    return _last

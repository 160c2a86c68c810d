"""Report how many calls the last decomposition traced, and how many it took from templates."""

from __future__ import annotations

from dataclasses import dataclass, field

from fxpress._base.deprecation import renamed


@dataclass
class Report:
    """A report on how a program's operator calls were decomposed; `str()` returns a summary.

    A template is the trace of one call, used for all equal calls. torch has no such class.

    Attributes:
        calls: how many operator calls the program has.
        instantiated: how many calls got their nodes from a template, or were repeated in a trace.
        traced: how many new templates were traced for this program.
        kept: how many templates from earlier programs were used.
        reason: why torch traced the entire program; empty if it did not.
        by_operator: name of an operator -> how many of its calls got their nodes from a template.

    Example:
        >>> from fxpress import decompose
        >>> decomposed = decompose.run_decompositions(program)
        >>> report = decompose.report()
        >>> report.calls >= report.instantiated
        True
        >>> report.by_operator["aten.linear.default"]
        4
    """

    calls: int = 0
    instantiated: int = 0
    traced: int = 0
    kept: int = 0
    reason: str = ""
    by_operator: dict[str, int] = field(default_factory=dict)
    stamped = renamed("stamped", "instantiated")

    def __str__(self) -> str:
        if self.reason:
            return (
                f"the program was traced in full ({self.reason}); {self.instantiated} of "
                f"{self.calls} calls were repeated within the trace"
            )
        lines = [
            f"{self.instantiated} of {self.calls} calls were instantiated from templates: "
            f"{self.traced} traced for this program, {self.kept} from earlier programs"
        ]
        counts = sorted(self.by_operator.items(), key=lambda item: -item[1])
        return "\n".join([*lines, *(f"{count} of {name}" for name, count in counts)])


_last = Report()


def begin() -> Report:
    """Create the report of a new decomposition, which `report` returns from now on."""
    global _last
    _last = Report()
    return _last


def report() -> Report:
    """Return the report of the last decomposition in this process.

    The report is empty before the first decomposition. torch has no such function.

    Example:
        >>> from fxpress import decompose
        >>> decomposed = decompose.run_decompositions(program)
        >>> report = decompose.report()
        >>> report.instantiated > 0, report.reason
        (True, '')
    """
    return _last

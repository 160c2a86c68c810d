"""What became of the calls in the last program that was decomposed."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Report:
    """What became of the calls of operators in a decomposition; its text says it in lines.

    torch has no such class.

    Attributes:
        calls: how many calls the program has.
        stamped: how many of them were stamped from a template; also where the program was traced as
            a whole.
        traced: how many templates were traced for it.
        kept: how many templates of earlier programs were used.
        reason: why the whole program was traced instead; empty if it was not.
        by_operator: name of an operator -> how many of its calls were stamped.

    Example:
        >>> from fxpress import decompose
        >>> decomposed = decompose.run_decompositions(program)
        >>> report = decompose.report()
        >>> report.calls >= report.stamped
        True
        >>> report.by_operator["aten.linear.default"]
        4
    """

    calls: int = 0
    stamped: int = 0
    traced: int = 0
    kept: int = 0
    reason: str = ""
    by_operator: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        if self.reason:
            return (
                f"{self.calls} calls were traced as a whole: {self.reason}; {self.stamped} of "
                f"{self.calls} were stamped in it"
            )
        lines = [
            f"{self.stamped} of {self.calls} calls were stamped, from {self.traced} templates "
            f"traced now and {self.kept} of earlier programs"
        ]
        counts = sorted(self.by_operator.items(), key=lambda item: -item[1])
        return "\n".join([*lines, *(f"{count} of {name}" for name, count in counts)])


_last = Report()


def begin() -> Report:
    """Return the report of a decomposition that begins, which is the last one from now on."""
    global _last
    _last = Report()
    return _last


def report() -> Report:
    """Return what became of the calls of operators in the last decomposition of this process.

    It is empty before the first one. torch has no such function.

    Example:
        >>> from fxpress import decompose
        >>> decomposed = decompose.run_decompositions(program)
        >>> report = decompose.report()
        >>> report.stamped > 0, report.reason
        (True, '')
    """
    return _last

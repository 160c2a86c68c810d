"""What follows from the assumptions on a symbol, by sympy's rules."""

from __future__ import annotations

import functools

from fxpress._files.format.expression_limits import GrammarError
from fxpress._files.format.torch_facts import expression_facts

_NOT = "!"


def names() -> list[str]:
    """Return what may be assumed of a symbol, such as "positive"."""
    found: list[str] = expression_facts()["assumptions"]
    return found


def assumption(name: str, is_true: bool) -> str:
    """Return the text of an assumption, or of its opposite."""
    return name if is_true else _NOT + name


@functools.lru_cache(1024)
def implied(given: frozenset[str]) -> frozenset[str]:
    """Return all that follows from assumptions.

    Raises:
        GrammarError: they contradict each other.
    """
    facts = expression_facts()
    known: set[str] = set()
    waiting = list(given)
    while waiting:
        for fact in waiting:
            known.add(fact)
            known.update(facts["implies"].get(fact, ()))
        waiting = [
            conclusion
            for premises, conclusion in facts["rules"]
            if conclusion not in known and known.issuperset(premises)
        ]
    for fact in known:
        if _NOT + fact in known:
            shown = ", ".join(sorted(given))
            raise GrammarError(f"the assumptions {shown} on a symbol contradict each other")
    return frozenset(known)

"""Make sympy's expressions of their texts, without running any code of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sympy

from fxpress._files.format import expression_text
from fxpress._files.format.expression_limits import ExcessError, GrammarError
from fxpress._files.serde.bounded_functions import SympyAlgebra
from fxpress._files.serde.limits import Budget, LimitError
from fxpress._torch import serde as compat


class ExpressionError(compat.SerializeError):
    """A text that is not an expression of the grammar, or one that is too large."""


def parse(text: str, symbols: Mapping[str, Any], budget: Budget | None = None) -> Any:
    """Return the sympy expression that a text describes."""
    budget = Budget(None, 0) if budget is None else budget
    try:
        with budget.symbolic:
            algebra = SympyAlgebra(symbols, budget)
            result = expression_text.read(text, algebra, budget.limits).value
    except GrammarError as e:
        raise ExpressionError(str(e)) from None
    except ExcessError as e:
        raise LimitError(e.limit, e.place) from None
    except LimitError:
        raise
    except Exception as e:  # sympy raises many kinds
        raise ExpressionError(f"not an expression: {text[:200]!r}: {e}") from e
    if not isinstance(result, sympy.Basic):
        raise ExpressionError(f"not an expression: {text[:200]!r}")
    return result

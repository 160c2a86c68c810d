"""Look at the ranges of symbols."""

from __future__ import annotations

from typing import Any

from fxpress._files.format.fields import an_object
from fxpress._tools.inspect.findings import Found


def check_ranges(ranges: dict[str, Any]) -> Found:
    """Yield the ranges that have no value.

    Raises:
        TypeError: a field is damaged.
    """
    for name, limits in ranges.items():
        low, high = an_object(limits).get("min_val"), limits.get("max_val")
        if low is not None and high is not None and low > high:
            yield f"range_constraints[{name!r}]: no value is from {low} to {high}", False

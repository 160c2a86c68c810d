"""Choose the examples of generated tests: fixed, or FXPRESS_EXAMPLES times as many, at random.

With fixed examples, a test fails only because of a change, never because of a new example.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_TIMES = os.environ.get("FXPRESS_EXAMPLES")


def examples(count: int) -> settings:
    """Options of a generated test."""
    return settings(
        max_examples=count * int(_TIMES or 1),
        derandomize=_TIMES is None,
        deadline=None,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )

"""The examples of a generated test: the same in each run, or FXPRESS_EXAMPLES times as many others.

A change must not fail a test because of an example that it has nothing to do with.
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

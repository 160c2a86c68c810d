"""How many examples a generated test takes: as written here, or FXPRESS_EXAMPLES times as many."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_TIMES = int(os.environ.get("FXPRESS_EXAMPLES", "1"))


def examples(count: int) -> settings:
    """Options of a generated test."""
    return settings(
        max_examples=count * _TIMES,
        deadline=None,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )

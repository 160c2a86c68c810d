"""Runs the tests with torch's unflattened modules on fxpress's engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.engine import engine


@pytest.fixture
def ours() -> Iterator[None]:
    with engine():
        yield

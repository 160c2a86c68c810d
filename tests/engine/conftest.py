"""Every test runs torch's unflattened modules with our engine, but for what it asks of torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.engine import engine


@pytest.fixture
def ours() -> Iterator[None]:
    with engine():
        yield

"""Modules whose code is deferred, and torch's equivalents."""

import pytest

from tests.support.deferred import WHICH, Pair, make_pair


@pytest.fixture(params=WHICH)
def pair(request: pytest.FixtureRequest) -> Pair:
    return make_pair(request.param)

"""Modules whose code is deferred, beside torch's."""

import pytest

from tests.support.deferred import WHICH, Pair, make_pair


@pytest.fixture(params=WHICH)
def pair(request: pytest.FixtureRequest) -> Pair:
    return make_pair(request.param)

"""Fixtures that several files share."""

import pytest

from tests.support.deferred import WHICH, Pair, make_pair
from tests.support.rooms import module, room, use

__all__ = ["module", "pair", "room", "use"]


@pytest.fixture(params=WHICH)
def pair(request: pytest.FixtureRequest) -> Pair:
    return make_pair(request.param)

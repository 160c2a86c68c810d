"""Tracked modules compared with torch's: graphs, stacks, guards, compilations, errors."""

from __future__ import annotations

import pytest

from tests.support import tracking_classes as tracking_classes  # these add their own
from tests.support import tracking_members as tracking_members
from tests.support import tracking_more as tracking_more
from tests.support import tracking_releases as tracking_releases
from tests.support import tracking_specialized as tracking_specialized
from tests.support.sampled import sampled
from tests.support.tracking import assert_same_traces
from tests.support.tracking_cases import SCENARIOS

pytestmark = pytest.mark.slow("each case is done by torch too")


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_scenario(name: str) -> None:
    assert_same_traces(SCENARIOS[name])


@pytest.mark.parametrize("name", sampled(sorted(SCENARIOS), 16, seed=0))
def test_torch_is_as_before(name: str) -> None:
    assert_same_traces(SCENARIOS[name], afterwards=True)

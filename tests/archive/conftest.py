"""Fixtures that tests of hostile files share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.support import seed_programs


@pytest.fixture
def seeds_registered() -> Iterator[None]:
    """The classes and operators of the seeds are registered; nothing is logged of their files."""
    logging.disable(logging.CRITICAL)
    seed_programs.register()
    yield
    logging.disable(logging.NOTSET)

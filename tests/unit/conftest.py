"""Fixtures of the tests of install()."""

from tests.support.rooms import module, room, use

__all__ = ["module", "room", "use"]

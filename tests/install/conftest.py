"""The fixtures of made-up rooms."""

from tests.support.rooms import module, room, use

__all__ = ["module", "room", "use"]

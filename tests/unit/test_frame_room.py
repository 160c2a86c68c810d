"""Room for the frames of many nested calls."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Callable

import pytest

from fxpress._frame_room import has_room, with_room


def test_calls_as_it_is() -> None:
    @with_room
    def function(first: int, *rest: int, named: str = "no") -> tuple[object, ...]:
        """What it does."""
        return first, rest, named, has_room()

    assert function(1, 2, 3, named="yes") == (1, (2, 3), "yes", True)
    assert function.__name__ == "function"
    assert function.__doc__ == "What it does."
    assert not has_room()


def test_errors() -> None:
    @with_room
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(TypeError, match="positional argument"):
        fail(1)  # type: ignore[call-arg]
    assert not has_room()


def test_room_is_made_once_and_for_one_thread() -> None:
    depths: list[int] = []
    elsewhere: list[bool] = []

    def depth() -> int:
        frame, count = sys._getframe(), 0
        while frame.f_back is not None:
            frame, count = frame.f_back, count + 1
        return count

    @with_room
    def inner() -> None:
        depths.append(depth())

    @with_room
    def outer() -> None:
        inner()
        assert has_room()
        thread = threading.Thread(target=lambda: elsewhere.append(has_room()))
        thread.start()
        thread.join()

    inner()
    outer()
    assert elsewhere == [False]
    # Less the frame of `outer`, of its wrapper and of its room, and with no second room.
    assert depths[1] - depths[0] == 2


def _at_all_depths(depth: int) -> None:
    for _ in range(100):
        _same(depth)
    if depth > 0:
        _at_all_depths(depth - 1)


def _same(value: int) -> int:
    return value


def _page_faults(function: Callable[[int], None]) -> int:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    function(400)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames are not in chunks")
def test_calls_map_no_memory() -> None:
    roomy = with_room(_at_all_depths)
    roomy(400)  # what else is mapped once
    # A hundred calls across each border of chunks fault in a page each.
    assert _page_faults(roomy) < _page_faults(_at_all_depths) / 4

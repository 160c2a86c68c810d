"""Space for the frames of many nested calls."""

from __future__ import annotations

import functools
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch._dynamo import variables

import fxpress
from fxpress import functional_export
from fxpress._base.frame_space import call_with_space, has_space, with_space


def test_calls_as_it_is() -> None:
    @with_space
    def named(first: int, *rest: int, function: str = "no") -> tuple[object, ...]:
        """Return the result of the call."""
        return first, rest, function, has_space()

    assert named(1, 2, 3, function="yes") == (1, (2, 3), "yes", True)
    assert call_with_space(named, 1, function="yes") == (1, (), "yes", True)
    assert named.__name__ == "named"
    assert named.__doc__ == "Return the result of the call."
    assert not has_space()


def test_errors() -> None:
    @with_space
    def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(TypeError, match="positional argument"):
        fail(1)  # type: ignore[call-arg]
    assert not has_space()


def test_space_is_made_once_and_for_one_thread() -> None:
    depths: list[int] = []
    elsewhere: list[bool] = []

    def depth() -> int:
        frame, count = sys._getframe(), 0
        while frame.f_back is not None:
            frame, count = frame.f_back, count + 1
        return count

    @with_space
    def inner() -> None:
        depths.append(depth())

    @with_space
    def outer() -> None:
        inner()
        assert has_space()
        thread = threading.Thread(target=lambda: elsewhere.append(has_space()))
        thread.start()
        thread.join()

    inner()
    outer()
    assert elsewhere == [False]
    # With the frame of `outer`, and what calls it, but with no second space.
    assert depths[1] - depths[0] == 3


@contextmanager
def _components_in_traces() -> Iterator[list[bool]]:
    """Whether there was space, for each call of a function of torch that is traced."""
    components: list[bool] = []
    traced = variables.TorchInGraphFunctionVariable.call_function

    def record(*args: Any) -> Any:
        components.append(has_space())
        return traced(*args)

    with mock.patch.object(variables.TorchInGraphFunctionVariable, "call_function", record):
        yield components


def test_captures_and_calls_of_modules_have_space() -> None:
    model, x = nn.Sequential(nn.ReLU(), nn.Sequential(nn.ReLU())), torch.ones(2)
    for capture in (
        functional_export._dynamo_graph_capture_for_export,
        functional_export.dynamo_graph_capture_for_export,
    ):
        with _components_in_traces() as components:
            capture(lambda x: torch.relu(x) + 1)(x)
        assert components
        assert all(components)
    with fxpress.installed(), _components_in_traces() as components:
        torch._dynamo.reset()
        torch.compile(model, backend="eager")(x)
    assert components
    assert all(components)


def _at_all_depths(depth: int) -> None:
    for _ in range(100):
        _same(depth)
    if depth > 0:
        _at_all_depths(depth - 1)


def _same(value: int) -> int:
    return value


def _page_faults(function: Callable[[int], None]) -> int:
    """The most for several depths of the stack: it depends on where the borders are."""
    most = 0
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        function(400)
        most = max(most, resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
        function = functools.partial(_one_deeper, function)
    return most


def _one_deeper(function: Callable[[int], None], depth: int) -> None:
    local = [depth] * 3
    function(local[0])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="frames are not in chunks")
def test_calls_map_no_memory() -> None:
    spacious = with_space(_at_all_depths)
    spacious(400)  # what else is mapped once
    # A hundred calls across each border of chunks fault in a page each.
    assert _page_faults(spacious) < _page_faults(_at_all_depths) / 4

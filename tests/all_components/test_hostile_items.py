"""Dicts that override items(): its result is not used as pairs."""

from __future__ import annotations

from typing import Any

import pytest

from fxpress import serialize
from tests.support.hostile import exported, outcome


class Odd(dict):  # type: ignore[type-arg]
    """Says that it holds other things."""

    def items(self) -> Any:
        return [1, None, ("a",), "text"]


@pytest.mark.parametrize("place", ["kwargs", "nested", "stack"])
def test_items_that_are_no_pairs(place: str) -> None:
    program = exported()
    node = program.graph.output_node().prev
    if place == "kwargs":
        node._kwargs = Odd(a=1)
    elif place == "nested":
        node._args = (node.args[0], Odd(a=1))
    else:
        node.meta["nn_module_stack"] = Odd(node.meta["nn_module_stack"])
    error = outcome(serialize.serialize, program)
    assert place == "kwargs" or isinstance(error, serialize.SerializeError | ValueError)

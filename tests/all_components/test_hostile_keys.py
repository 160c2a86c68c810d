"""Names that override hash and comparison do not crash any component."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.fx import Graph, Node

from fxpress import _native
from tests.support.hostile import COMPONENTS, Key, Moment, Struck, outcome


def keyword(node: Node, made: Callable[[str], Key]) -> None:
    if node.kwargs:
        node._kwargs = {made(key): value for key, value in node.kwargs.items()}  # type: ignore


def nested(node: Node, made: Callable[[str], Key]) -> None:
    if node.op == "call_function":
        node._kwargs = {**node.kwargs, "extra": [{made("a"): [1, {made("b"): node.args}]}]}  # type: ignore


def stack(node: Node, made: Callable[[str], Key]) -> None:
    entries = node.meta.get("nn_module_stack")
    if entries:
        node.meta["nn_module_stack"] = {
            made(key): (made(path), kind) for key, (path, kind) in entries.items()
        }


def meta(node: Node, made: Callable[[str], Key]) -> None:
    node.meta = {made(key): value for key, value in node.meta.items()}


def name(node: Node, made: Callable[[str], Key]) -> None:
    node.name = made(node.name)


def target(node: Node, made: Callable[[str], Key]) -> None:
    if isinstance(node.target, str):
        node.target = made(node.target)


PLACES = [keyword, nested, stack, meta, name, target]


def strike(graph: Graph) -> None:
    raise Struck


def clear(graph: Graph) -> None:
    """Remove all entries from the containers of a graph."""
    for node in graph.nodes:
        for held in (node.meta, node._kwargs):
            if isinstance(held, dict):
                for value in held.values():
                    if isinstance(value, dict | list):
                        value.clear()
                dict.clear(held)
        node._args = ()


def grow(graph: Graph) -> None:
    for node in graph.nodes:
        for held in (node.meta, node._kwargs):
            if isinstance(held, dict):
                for i in range(200):
                    dict.__setitem__(held, f"more_{i}", i)


ACTIONS = [strike, clear, grow]


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_keys(component: str, place: Any, action: Callable[[Graph], None]) -> None:
    make, call = COMPONENTS[component]
    for at in (0, 1, 2, 3, 5, 8, 13, 21, 50, 100, 200):
        subject = make()
        moment = Moment(at, lambda graph=subject.graph: action(graph))

        def made(text: str, moment: Moment = moment) -> Key:
            key = Key(text)
            key.moment = moment
            return key

        for node in subject.graph.nodes:
            place(node, made)
        moment.armed = True
        outcome(call, subject)
        moment.armed = False
        assert _native.gc_pauses() == 0
        if moment.left >= 0:
            break  # nobody asks that often

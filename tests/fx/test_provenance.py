"""Provenance records of nodes equal torch's."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch.fx import Graph, Node
from torch.fx.traceback import NodeSource, NodeSourceAction

from fxpress import _native
from fxpress._torch import fx as compat
from fxpress._torch import native_tables
from tests.support.memory import check_no_object_leaks

native_tables.fx()
ACTIONS = [NodeSourceAction.CREATE, NodeSourceAction.REPLACE]


def noted() -> Node:
    """A node with a note of a note."""
    graph = Graph()
    first, second = graph.placeholder("x"), graph.call_function(torch.sin)
    second.meta["from_node"] = [NodeSource(first, "first pass", [NodeSourceAction.CREATE])]
    third = graph.call_function(torch.ops.aten.cos.default)
    third.meta["from_node"] = [NodeSource(second, "second pass", ACTIONS), NodeSource(None)]
    return third


def as_dicts(notes: list[Any]) -> list[Any]:
    return [{"class": type(note), **note.to_dict()} for note in notes]


def note_of(maker: _native.Provenance, node: Node) -> list[Any]:
    return maker.note(node.name, node.target, id(node.graph), node.meta.get("from_node"))


@pytest.mark.parametrize("actions", [ACTIONS[:1], ACTIONS])
def test_as_torch(actions: list[Any]) -> None:
    maker = _native.Provenance(compat.provenance_rules("a pass", *actions))
    node = noted()
    for each in (node, *node.graph.nodes):
        (mine,), theirs = note_of(maker, each), NodeSource(each, "a pass", actions)
        assert as_dicts([mine]) == as_dicts([theirs])
        assert list(vars(mine)) == list(vars(theirs))
        assert mine == theirs
    (nothing,) = maker.note_of_none()
    assert as_dicts([nothing]) == as_dicts([NodeSource(None, "a pass", actions)])


def test_earlier_notes_are_shared_where_torch_shares_them() -> None:
    maker = _native.Provenance(compat.provenance_rules("a pass", NodeSourceAction.CREATE))
    node = noted()
    (mine,), theirs = note_of(maker, node), NodeSource(node, "a pass")
    for kept, also, earlier in zip(
        mine.from_node, theirs.from_node, node.meta["from_node"], strict=True
    ):
        assert (kept is earlier) == (also is earlier)
        assert (kept.action is earlier.action) == (also.action is earlier.action)


def test_copy_sources() -> None:
    notes = noted().meta["from_node"]
    mine, theirs = compat._copy_sources(notes), copy.deepcopy(notes)
    assert as_dicts(mine) == as_dicts(theirs) == as_dicts(notes)
    assert all(copied is not note for copied, note in zip(mine, notes, strict=True))
    assert mine[0].from_node[0] is not notes[0].from_node[0]
    assert mine[0].node_info is not notes[0].node_info


def test_targets_live_as_long_as_their_texts() -> None:
    class Target:
        def __str__(self) -> str:
            return "a target"

    target = Target()
    gone = weakref.ref(target)
    maker = _native.Provenance(compat.provenance_rules("a pass"))
    assert maker.note("name", target, 0, None)[0].node_info.target == "a target"
    del target
    gc.collect()
    assert gone() is not None
    del maker
    gc.collect()
    assert gone() is None


def test_errors() -> None:
    rules = compat.provenance_rules("a pass")
    for key in rules:
        with pytest.raises(KeyError):
            _native.Provenance({k: v for k, v in rules.items() if k != key})
        with pytest.raises(TypeError):
            _native.Provenance({**rules, key: 1})

    class Unwilling:
        def __str__(self) -> str:
            raise ValueError("no text")

    maker = _native.Provenance(rules)
    unwilling = Unwilling()
    for _ in range(2):  # nothing is kept of the first
        with pytest.raises(ValueError, match="no text"):
            maker.note("name", unwilling, 0, None)
    assert maker.note("name", "target", 0, None)[0].node_info.target == "target"
    with pytest.raises(TypeError):
        maker.note("name", "target", 0, 5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        maker.note(1, "target", 0, None)  # type: ignore[arg-type]


def test_no_objects_leak() -> None:
    rules, node = compat.provenance_rules("a pass"), noted()

    def call() -> None:
        maker = _native.Provenance(rules)
        note_of(maker, node)
        maker.note_of_none()
        with pytest.raises(KeyError):
            _native.Provenance({})
        with pytest.raises(TypeError):
            maker.note("name", "target", 0, 5)  # type: ignore[arg-type]

    check_no_object_leaks(call)

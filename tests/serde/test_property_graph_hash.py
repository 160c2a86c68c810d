"""graph_hash on generated programs: changes that keep the hash, and changes that do not."""

from __future__ import annotations

import copy
import operator
from typing import Any

import pytest
from hypothesis import event, given, reject
from hypothesis import strategies as st
from torch.export import ExportedProgram
from torch.fx import Node

from fxpress import diff, graph_hash
from tests.support.generated import examples
from tests.support.shuffled import shuffled
from tests.unflatten.test_property_trees import PICKS, Plan, arguments, exported, trees

pytestmark = pytest.mark.slow("generated cases")


def program_of(
    plan: Plan, picks: list[int], dynamic: bool, by_name: bool, functional: bool
) -> ExportedProgram:
    args, kwargs = arguments(3, by_name)
    try:
        return exported(
            plan, picks, args, kwargs, dynamic=dynamic, functional=functional, strict=False
        )[1]
    except Exception:
        reject()  # not exported by torch


PROGRAMS = (trees(writes=True), PICKS, st.booleans(), st.booleans())


@examples(8)
@given(*PROGRAMS, st.integers(0, 2**16))
def test_names_and_order_do_not_enter(
    plan: Plan, picks: list[int], dynamic: bool, by_name: bool, seed: int
) -> None:
    program = program_of(plan, picks, dynamic, by_name, functional=True)
    other = shuffled(program, seed)
    assert graph_hash(program) == graph_hash(other)
    assert diff(program, other) == []


def changed(node: Node, data: st.DataObject) -> bool:
    """Gives a call another argument; False where it has none that is easily changed."""
    places = [i for i, a in enumerate(node.args) if isinstance(a, (int, float, Node))]
    if not places:
        return False
    place = data.draw(st.sampled_from(places))
    value: Any = node.args[place]
    if isinstance(value, Node):
        others = [n for n in node.graph.nodes if n < node and n is not value and "val" in n.meta]
        if not others:
            return False
        value = data.draw(st.sampled_from(others))
    else:
        value = (not value) if isinstance(value, bool) else value + 1
    node.args = (*node.args[:place], value, *node.args[place + 1 :])
    return True


@examples(8)
@given(*PROGRAMS, st.booleans(), st.data())
def test_a_changed_argument_enters(
    plan: Plan,
    picks: list[int],
    dynamic: bool,
    by_name: bool,
    functional: bool,
    data: st.DataObject,
) -> None:
    program = program_of(plan, picks, dynamic, by_name, functional)
    other = copy.deepcopy(program)
    # getitem is written with the node that it reads, and not at all where that has one result.
    calls = [
        n for n in other.graph.nodes if n.op == "call_function" and n.target is not operator.getitem
    ]
    if not calls or not changed(data.draw(st.sampled_from(calls)), data):
        reject()
    try:
        same = graph_hash(program) == graph_hash(other)
    except Exception:
        event("cannot be written any more")
        return
    assert not same or str(program.graph) == str(other.graph)
    assert bool(diff(program, other)) is not same

"""Callbacks that raise, call again and edit the graph they are asked about, at any moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from fxpress import _native
from fxpress.split_module import split_module
from tests.support.edits import (
    EDITS,
    interrupt,
    many_arguments,
    more_results,
    no_arguments,
    other_inputs,
    placeholder_to_call,
    strike,
)
from tests.support.hostile import (
    COMPONENTS,
    Meta,
    Moment,
    arguments,
    outcome,
    run_split,
    traced,
)


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_split_callback(edit: Callable[[Graph], None]) -> None:
    for at in range(8):
        module = traced()
        moment = Moment(at, lambda graph=module.graph: edit(graph))
        moment.armed = True

        def callback(node: Node, moment: Moment = moment) -> int:
            moment()
            return len(node.name) % 2

        error = outcome(lambda m, ask=callback: split_module(m, None, ask), module)
        if edit is strike:
            assert (error is None) == (moment.left >= 0)
        assert _native.gc_pauses() == 0


@pytest.mark.parametrize("component", COMPONENTS)
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_metas_that_edit_while_they_are_copied(
    component: str, edit: Callable[[Graph], None]
) -> None:
    """After planning: the metas are copied where nodes are written."""
    make, call = COMPONENTS[component]
    for at in range(12):
        subject = make()
        moment = Moment(at, lambda graph=subject.graph: edit(graph))
        for node in subject.graph.nodes:
            node.meta = Meta(node.meta)
            node.meta.moment = moment
        moment.armed = True
        outcome(call, subject)
        assert _native.gc_pauses() == 0
        if moment.left >= 0:
            break  # that is all the copies there are


@pytest.mark.parametrize(
    "edit", [placeholder_to_call, many_arguments, no_arguments, other_inputs, more_results]
)
def test_the_error_says_that_the_graph_was_edited(edit: Callable[[Graph], None]) -> None:
    module = traced()
    moment = Moment(0, lambda: edit(module.graph))
    for node in module.graph.nodes:
        node.meta = Meta(node.meta)
        node.meta.moment = moment
    moment.armed = True
    error = outcome(run_split, module)
    assert error is None or (isinstance(error, RuntimeError) and "edited" in str(error))


def test_modules_that_edit_while_attributes_are_looked_up() -> None:
    """Between the callback and the first node that is written."""

    class Root(torch.nn.Module):
        def __getattr__(self, name: str) -> Any:
            if name == "weight":
                self.moment()
            return super().__getattr__(name)

    for edit in EDITS:
        root = Root()
        root.weight = torch.nn.Parameter(torch.ones(2))
        graph = Graph()
        x, weight = graph.placeholder("x"), graph.get_attr("weight")
        graph.output(graph.call_function(torch.add, (x, weight)))
        root.moment = Moment(0, lambda edit=edit, graph=graph: edit(graph))
        module = GraphModule(root, graph)
        module.__class__ = type("Odd", (Root, type(module)), {})
        module.moment = root.moment
        module.moment.armed = True
        outcome(lambda m: split_module(m, None, lambda node: 0), module)
        assert module.moment.left < 0


def test_callbacks_that_call_again() -> None:
    expected = run_split(traced())
    module = traced()
    depth = 0

    def callback(node: Node) -> int:
        nonlocal depth
        depth += 1
        if depth < 4:
            split_module(module, None, callback)
        return 0

    made = split_module(module, None, callback)
    assert isinstance(made, GraphModule)
    torch.manual_seed(0)
    assert made(*arguments()).shape == expected.shape  # type: ignore[attr-defined]
    assert _native.gc_pauses() == 0


@pytest.mark.parametrize("component", COMPONENTS)
def test_interrupts(component: str) -> None:
    make, call = COMPONENTS[component]
    for at in range(0, 30, 5):
        subject = make()
        moment = Moment(at, lambda: interrupt(subject.graph))  # noqa: B023
        for node in subject.graph.nodes:
            node.meta = Meta(node.meta)
            node.meta.moment = moment
        moment.armed = True
        try:
            call(subject)
        except KeyboardInterrupt:
            assert moment.left < 0
        assert _native.gc_pauses() == 0
        moment.armed = False
        call(subject)

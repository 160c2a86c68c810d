"""Callbacks that raise, call again and edit the graph that they are called for, at any moment."""

from __future__ import annotations

import _thread
import io
import signal
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

import fxpress
from fxpress import _native
from fxpress.decompose import run_decompositions
from fxpress.export import module
from fxpress.serialize import serialize
from fxpress.split_module import split_module, split_module_simple
from fxpress.unflatten import unflatten
from tests.support.edits import BROKEN_RINGS, EDITS, interrupt, move, no_tables, strike
from tests.support.hostile import (
    COMPONENTS,
    Key,
    Meta,
    Moment,
    arguments,
    exported,
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


def plain() -> GraphModule:
    """Return a module whose code is written natively."""
    graph = Graph()
    x = graph.placeholder("x")
    for _ in range(5):
        x = graph.call_function(torch.softmax, (x,), {"dim": 0})
    graph.output((x,))
    return GraphModule(torch.nn.Module(), graph)


MODIFIED = "graph was modified during the call"

# That read a graph, with the attribute of a node whose use runs code while they do.
READERS: dict[str, tuple[Callable[[], Any], Callable[[Any], object], str]] = {
    "split": (traced, lambda module: split_module(module, None, lambda _: 0), "meta"),
    "split_simple": (traced, lambda module: split_module_simple(module, defaultdict(int)), "meta"),
    "unflatten": (exported, unflatten, "meta"),
    "serialize": (exported, serialize, "name"),
    "graph_hash": (exported, fxpress.graph_hash, "name"),
    "module": (exported, module, "meta"),
    "save": (exported, lambda program: fxpress.save(program, io.BytesIO()), "name"),
    "diff": (exported, lambda program: fxpress.diff(program, exported()), "name"),
    "decompose": (exported, run_decompositions, "name"),
    "code": (plain, lambda module: _native.python_source(module.graph), "kwargs"),
}


class Keyword(str):
    """The name of an argument, as code makes it."""

    moment: Moment

    def __str__(self) -> str:
        self.moment()
        return self[:]


def arm(subject: Any, attribute: str, moment: Moment) -> None:
    """Let the use of an attribute of any node run code."""
    for node in subject.graph.nodes:
        if attribute == "meta":
            node.meta = Meta(node.meta)
            node.meta.moment = moment
        elif attribute == "name":
            node.name = Key(node.name)
            node.name.moment = moment
        else:
            node._kwargs = {Keyword(key): value for key, value in node.kwargs.items()}  # type: ignore
            for key in node.kwargs:
                key.moment = moment  # type: ignore[attr-defined]
    moment.armed = True


@pytest.mark.parametrize("component", READERS)
@pytest.mark.parametrize(
    "edit", [e for e in EDITS if e not in (strike, no_tables)], ids=lambda e: e.__name__
)
def test_a_graph_that_is_edited_meanwhile(component: str, edit: Callable[[Graph], None]) -> None:
    """No result of half of an edit, and no other error that follows from it."""
    make, call, attribute = READERS[component]
    for at in (0, 3):
        subject = make()
        moment = Moment(at, lambda graph=subject.graph: edit(graph))
        arm(subject, attribute, moment)
        error = outcome(call, subject)
        if at == 0 or moment.left < 0:
            assert isinstance(error, RuntimeError)
            assert MODIFIED in str(error)
        assert _native.gc_pauses() == 0


@pytest.mark.parametrize("component", READERS)
@pytest.mark.parametrize("edit", BROKEN_RINGS, ids=lambda edit: edit.__name__)
def test_a_graph_without_an_end(component: str, edit: Callable[[Graph], None]) -> None:
    make, call, _ = READERS[component]
    subject = make()
    edit(subject.graph)
    with pytest.raises(RuntimeError, match=MODIFIED):
        call(subject)


@pytest.mark.parametrize("edit", BROKEN_RINGS, ids=lambda edit: edit.__name__)
def test_the_first_program_of_a_diff(edit: Callable[[Graph], None]) -> None:
    """Names of the second program edit the first one after it was hashed."""
    first, second = exported(), exported()
    arm(second, "name", Moment(0, lambda: edit(first.graph)))
    with pytest.raises(RuntimeError, match=MODIFIED):
        fxpress.diff(first, second)


def test_a_signal_handler_that_edits() -> None:
    """A handler runs where the program is looked through for Ctrl-C: every 1024 nodes."""
    graph = Graph()
    x = graph.placeholder("x")
    for _ in range(3000):
        x = graph.call_function(torch.neg, (x,))
    graph.output(x)
    subject = GraphModule(torch.nn.Module(), graph)

    class Signals(str):
        def __str__(self) -> str:
            _thread.interrupt_main(signal.SIGUSR1)  # as if the signal came now
            return self[:]

    next(iter(graph.nodes)).next._kwargs = {Signals("out"): None}  # type: ignore[assignment]
    before = signal.signal(signal.SIGUSR1, lambda *_: move(graph))
    try:
        with pytest.raises(RuntimeError, match=MODIFIED):
            _native.python_source(subject.graph)
    finally:
        signal.signal(signal.SIGUSR1, before)


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


@pytest.mark.parametrize("edit", BROKEN_RINGS, ids=lambda edit: edit.__name__)
def test_split_of_a_module_whose_child_has_a_graph_without_an_end(
    edit: Callable[[Graph], None],
) -> None:
    root, graph = torch.nn.Module(), Graph()
    root.inner = plain()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    subject = GraphModule(root, graph)
    edit(root.inner.graph)
    with pytest.raises(RuntimeError, match=MODIFIED):
        split_module(subject, None, lambda _: 0)

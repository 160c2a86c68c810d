"""Objects that are created at their first use are the same for threads that use them first."""

from __future__ import annotations

import copy
import gc
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule
from torch.fx.graph import CodeGen

from fxpress import _native, serialize
from fxpress.split_module import split_module
from fxpress.unflatten import unflatten
from tests.support.hostile import arguments, by_three, exported, traced

THREADS, TURNS = 8, 5


@pytest.fixture(autouse=True)
def _threads_that_change_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def together(calls: list[Callable[[Any], Any]], subject: Any) -> list[Any]:
    """Return the results of the calls, each in its own thread; all threads start together."""
    barrier = threading.Barrier(len(calls))

    def start(call: Callable[[Any], Any]) -> Any:
        barrier.wait(timeout=60)
        return call(subject)

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(start, calls, timeout=120))


def graph_text(graph: Any) -> str:
    return str(graph).strip()


UNFLATTENED: dict[str, Callable[[Any], Any]] = {
    "call": lambda m: m(*arguments()).tolist(),
    "inner": lambda m: m.inner(*arguments()).tolist(),
    "code": lambda m: [p.graph_module.code for p in m.modules() if hasattr(p, "graph_module")],
    "signature": lambda m: str(m.graph_signature),
    "inputs": lambda m: [str(node) for node in m.input_placeholders],
    "copy": lambda m: copy.deepcopy(m)(*arguments()).tolist(),
    "printed": lambda m: graph_text(m.graph),
    "state": lambda m: sorted(m.state_dict()),
}
# Without print_readable: torch's generator names the nodes of the graph anew while it writes, which
# other threads then see.
SPLIT: dict[str, Callable[[Any], Any]] = {
    "call": lambda m: m(*arguments()).tolist(),
    "code": lambda m: [part.code for part in m.modules() if isinstance(part, GraphModule)],
    "forward": lambda m: str(inspect.signature(m.forward)),
    "copy": lambda m: copy.deepcopy(m).code,
    "printed": lambda m: graph_text(m.graph),
    "children": lambda m: [name for name, _ in m.named_modules()],
    "state": lambda m: sorted(m.state_dict()),
}
READ: dict[str, Callable[[Any], Any]] = {
    "call": lambda p: p.module()(*arguments()).tolist(),
    "unflattened": lambda p: unflatten(p)(*arguments()).tolist(),
    "again": lambda p: serialize.serialize(p).exported_program,
    "printed": lambda p: graph_text(p.graph),
    "state": lambda p: sorted(p.state_dict),
}


def split() -> Any:
    torch.manual_seed(0)
    module = traced()
    return split_module(module, None, by_three(module))


def read() -> Any:
    return serialize.deserialize(serialize.serialize(exported()))


MAKERS: dict[str, tuple[Callable[[], Any], dict[str, Callable[[Any], Any]]]] = {
    "unflattened": (lambda: unflatten(exported()), UNFLATTENED),
    "split": (split, SPLIT),
    "read": (read, READ),
}


@pytest.mark.parametrize("what", MAKERS)
def test_all_kinds_at_once(what: str) -> None:
    make, calls = MAKERS[what]
    expected = [call(make()) for call in calls.values()]
    for _ in range(TURNS):
        assert together(list(calls.values()), make()) == expected
    assert gc.isenabled()
    assert _native.gc_pauses() == 0


@pytest.mark.parametrize(
    ("what", "call"), [(what, name) for what, (_, calls) in MAKERS.items() for name in calls]
)
def test_one_kind_by_all(what: str, call: str) -> None:
    make, calls = MAKERS[what]
    expected = calls[call](make())
    for _ in range(2):
        assert together([calls[call]] * THREADS, make()) == [expected] * THREADS


class Observer(CodeGen):
    """Another generator, so that torch's generator runs; it reads the graph meanwhile."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.graph, self.seen = graph, ""

    def generate_output(self, *args: Any, **kwargs: Any) -> str:
        self.seen = str(self.graph)
        return super().generate_output(*args, **kwargs)


def test_generating_renames_no_node_that_others_read() -> None:
    part = split().submod_0
    next(iter(part.graph.nodes)).name = "inf"  # a name that the source cannot use
    before = str(part.graph)
    assert "(%inf,)" in before
    part.graph._codegen = observer = Observer(part.graph)
    assert "inf_1" in part.code
    assert observer.seen == before

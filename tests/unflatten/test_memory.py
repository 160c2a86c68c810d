"""References, leaks and resident memory of unflatten and of what it makes."""

from __future__ import annotations

import copy
import functools
import gc
import logging
import pickle
import sys
import weakref
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export

from fxpress.unflatten import unflatten
from tests.support.memory import (
    check_collector_is_as_it_was,
    check_no_blocks_leak,
    check_no_object_leaks,
    forget_sources,
    live,
)
from tests.support.unflatten_models import Counter, Deep, Nest, Repeated


@pytest.fixture(autouse=True)
def no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest keeps every record that torch logs."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)


class Tower(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return x


@functools.cache
def program(kind: str) -> ExportedProgram:
    """Made once: torch keeps something of every export."""
    x = torch.randn(3, 4)
    if kind == "nest":
        return export(Nest(), (x, x), strict=False)
    if kind == "preserved":
        preserved = ("block", "block.inner")
        return export(Deep(), (x,), strict=False, preserve_module_call_signature=preserved)
    if kind == "mutated":
        made = export(
            Repeated(Counter()), (x,), strict=False, preserve_module_call_signature=("inner",)
        )
        return made.run_decompositions({})
    if kind == "bad stack":
        made = export(Nest(), (x, x), strict=False)
        list(made.graph.nodes)[-2].meta.pop("nn_module_stack")
        return made
    if kind == "bad state":
        made = export(Nest(), (x, x), strict=False)
        made.state_dict.pop("norm.bias")
        return made
    return export(Tower(50, 64), (torch.randn(2, 64),), strict=False)


def inputs(kind: str) -> tuple[Tensor, ...]:
    return (torch.ones(3, 4),) * (2 if kind == "nest" else 1)


def succeed(kind: str) -> None:
    module = unflatten(program(kind))
    module(*inputs(kind))


def succeed_with_gradients() -> None:
    unflatten(program("nest"))(*inputs("nest")).sum().backward()


def succeed_and_copy() -> None:
    module = unflatten(program("nest"))
    module(*inputs("nest"))
    copy.deepcopy(module)(*inputs("nest"))


def succeed_and_pickle() -> None:
    pickle.loads(pickle.dumps(unflatten(program("nest"))))


def succeed_sharing() -> None:
    unflatten(program("nest"), share_state=True)(*inputs("nest"))


def fail_without_a_stack() -> None:
    with pytest.raises(RuntimeError):
        unflatten(program("bad stack"))


def fail_without_state() -> None:
    with pytest.raises(KeyError):
        unflatten(program("bad state"))


@functools.cache
def made() -> Any:
    return unflatten(program("nest"))


def fail_while_running() -> None:
    with pytest.raises(RuntimeError):
        made()(torch.ones(3, 4), torch.ones(2, 4))
    with pytest.raises(TypeError):
        made()(torch.ones(3, 4))
    made().check_input_constraints = False
    with pytest.raises(RuntimeError):
        made()(torch.ones(3, 5), torch.ones(3, 5))
    made().check_input_constraints = True


def read_code() -> None:
    module = unflatten(program("nest"))
    assert all(m.graph_module.code for m in module.modules() if hasattr(m, "graph"))


CASES: list[Callable[[], None]] = [
    functools.partial(succeed, "nest"),
    functools.partial(succeed, "preserved"),
    functools.partial(succeed, "mutated"),
    succeed_with_gradients,
    succeed_and_copy,
    succeed_and_pickle,
    succeed_sharing,
    fail_without_a_stack,
    fail_without_state,
    fail_while_running,
]
NAMES = [
    c.func.__name__ + "_" + c.args[0] if isinstance(c, functools.partial) else c.__name__
    for c in CASES
]
EVERY = pytest.mark.parametrize("case", CASES, ids=NAMES)


@EVERY
def test_no_object_leaks(case: Callable[[], None]) -> None:
    check_no_object_leaks(case)


@EVERY
def test_no_block_leaks(case: Callable[[], None]) -> None:
    """Memory blocks of the interpreter do not grow with the number of calls."""

    # two for each call: a node alone takes more
    check_no_blocks_leak(case, 80, kept=2, collect=forget_sources)


@EVERY
def test_collector_is_as_it_was(case: Callable[[], None]) -> None:
    check_collector_is_as_it_was(case)


def test_code_does_not_leak_modules() -> None:
    for _ in range(3):
        read_code()
    before = live((torch.fx.Graph, nn.Module))
    for _ in range(5):
        read_code()
    assert live((torch.fx.Graph, nn.Module)) <= before


def test_neither_keeps_the_other_alive() -> None:
    """torch's program holds the module, and the module the program (U-10)."""
    x = torch.randn(3, 4)
    source = copy.deepcopy(program("nest"))  # torch itself keeps what it has exported
    module = unflatten(source)
    died = weakref.ref(module)
    del module
    gc.collect()
    assert died() is None
    module = unflatten(source)
    graph, parameter = weakref.ref(source.graph), weakref.ref(source.state_dict["norm.bias"])
    del source
    gc.collect()
    assert graph() is None
    assert parameter() is None
    module(x, x)


@pytest.mark.parametrize("used", ["not", "run", "code", "compiled"])
def test_modules_die(used: str) -> None:
    module = unflatten(program("preserved"))
    if used == "run":
        module(*inputs("preserved"))
    elif used == "code":
        assert module.graph_module.code
    elif used == "compiled":
        torch.compile(module, backend="eager")(*inputs("preserved"))
    died = [weakref.ref(m) for m in module.modules()]
    died += [weakref.ref(m.graph) for m in module.modules() if hasattr(m, "graph")]
    del module
    torch._dynamo.reset()
    gc.collect()
    assert all(reference() is None for reference in died)


def test_submodules_live_without_their_root() -> None:
    module = unflatten(program("nest"))
    x = torch.randn(3, 4)
    expected = module.norm(x)
    norm = module.norm
    del module
    gc.collect()
    torch.testing.assert_close(norm(x), expected)


def test_reference_counts_of_shared_objects() -> None:
    source = program("nest")
    targets = [torch.ops.aten.linear.default, torch.ops.aten.add.Tensor]
    values = [n.meta["val"] for n in source.graph.nodes if "val" in n.meta]
    shared = [
        *targets,
        *values,
        source,
        source.graph,
        source.graph_module,
        source.range_constraints,
    ]
    succeed("nest")
    gc.collect()
    before = [sys.getrefcount(o) for o in shared]
    for _ in range(20):
        succeed("nest")
    gc.collect()
    assert [sys.getrefcount(o) for o in shared] == before


def rss_growth(work: Callable[[], object]) -> int:
    """Bytes that 30 more calls add to the resident memory, after 10."""
    process = psutil.Process()

    def rss(repeats: int) -> int:
        for _ in range(repeats):
            work()
        gc.collect()
        return int(process.memory_info().rss)

    rss(10)
    first = rss(1)
    return rss(30) - first


def test_resident_memory_does_not_grow() -> None:
    source = program("tower")
    assert rss_growth(lambda: unflatten(source)) < 8 * 2**20


def test_resident_memory_does_not_grow_while_running() -> None:
    module, x = unflatten(program("tower")), torch.randn(2, 64)
    assert rss_growth(lambda: [module(x) for _ in range(20)]) < 4 * 2**20
    assert rss_growth(lambda: module(x).sum().backward()) < 4 * 2**20


def test_resident_memory_does_not_grow_on_failure() -> None:
    assert rss_growth(lambda: [fail_without_state() for _ in range(5)]) < 4 * 2**20
    assert rss_growth(lambda: [fail_while_running() for _ in range(5)]) < 4 * 2**20


def test_sharing_state_takes_no_memory_for_weights() -> None:
    """Peak of new tensor memory: a copy of the weights, or nothing."""
    x = torch.randn(1, 1024)
    source = export(Tower(4, 1024), (x,), strict=False)
    weights = sum(t.nbytes for t in source.state_dict.values())

    def storages(module: nn.Module) -> int:
        mine = {t.untyped_storage()._cdata: t.nbytes for t in module.state_dict().values()}
        theirs = {t.untyped_storage()._cdata for t in source.state_dict.values()}
        return sum(size for key, size in mine.items() if key not in theirs)

    assert storages(unflatten(source)) == weights
    assert storages(unflatten(source, share_state=True)) == 0


def test_values_are_freed_after_their_last_use() -> None:
    """At most a few of the 40 activations are alive at once."""
    count = 40
    x = torch.randn(1, 64)
    module = unflatten(export(Tower(count, 64), (x,), strict=False))
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal most
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor):
                alive.append(weakref.ref(result))
            most = max(most, sum(r() is not None for r in alive))
            return result

    with torch.no_grad(), Watch():
        module(x)
    assert len(alive) >= count
    assert most <= 8

"""References and leaks of module() and of its result."""

from __future__ import annotations

import copy
import functools
import gc
import logging
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from fxpress.export import module
from tests.support.memory import (
    check_collector_is_as_it_was,
    check_no_blocks_leak,
    check_no_object_leaks,
    forget_sources,
)
from tests.support.unflatten_models import Counter, Nest, Repeated

X = torch.ones(3, 4)


@pytest.fixture(autouse=True)
def no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest keeps every record that torch logs."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


@functools.cache
def program(kind: str) -> ExportedProgram:
    """Made once: torch keeps something of every export."""
    if kind == "dynamic":
        rows = {0: Dim("rows", min=2, max=64)}
        return export(Nest(), (X, X), dynamic_shapes=(rows, rows), strict=False)
    if kind == "written":
        return export(Repeated(Counter()), (X,), strict=False).run_decompositions({})
    if kind == "branches":
        return export(Branches(), (X,), strict=False)
    made = export(Nest(), (X, X), strict=False)
    if kind == "bad state":
        made.state_dict.pop("norm.bias")
    if kind == "bad outputs":
        made.graph_signature.output_specs.append(made.graph_signature.output_specs[0])
    if kind == "bad example":
        made._example_inputs = ((X, X, X), {})
    return made


def make(kind: str) -> None:
    module(program(kind))


def run(kind: str) -> None:
    """Without guards: of each call of their function, torch keeps two blocks."""
    made = module(program(kind), check_guards=False)
    made(*program(kind).example_inputs[0])


def fail(kind: str) -> None:
    with pytest.raises((KeyError, AssertionError, TypeError)):
        module(program(kind))


def copied() -> None:
    copy.deepcopy(module(program("nest")))


CASES: dict[str, Callable[[], None]] = {
    **{f"make {kind}": functools.partial(make, kind) for kind in ("nest", "dynamic", "branches")},
    **{f"run {kind}": functools.partial(run, kind) for kind in ("nest", "dynamic", "written")},
    **{
        f"fail {kind}": functools.partial(fail, kind)
        for kind in ("bad state", "bad outputs", "bad example")
    },
    "copy": copied,
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@EVERY
def test_no_object_leaks(case: Callable[[], None]) -> None:
    check_no_object_leaks(case)


@EVERY
def test_no_block_leaks(case: Callable[[], None]) -> None:
    # two for each call: a node alone takes more
    check_no_blocks_leak(case, 60, kept=2, collect=forget_sources)


@EVERY
def test_collector_is_as_it_was(case: Callable[[], None]) -> None:
    check_collector_is_as_it_was(case)


@pytest.mark.parametrize("used", ["not", "run", "compiled"])
def test_modules_die(used: str) -> None:
    made = module(program("nest"))
    if used == "run":
        made(X, X)
    elif used == "compiled":
        torch.compile(made, backend="eager")(X, X)
    died = [weakref.ref(made), weakref.ref(made.graph), weakref.ref(type(made))]
    del made
    torch._dynamo.reset()
    gc.collect()
    assert all(reference() is None for reference in died)


def test_a_module_does_not_keep_its_program_alive() -> None:
    source = copy.deepcopy(program("nest"))  # torch itself keeps what it has exported
    made = module(source)
    died = weakref.ref(source), weakref.ref(source.graph)
    del source
    gc.collect()
    assert all(reference() is None for reference in died)
    made(X, X)

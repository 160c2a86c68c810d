"""Functions of the user's with state: they are called as often as by torch, in its order."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._decomp import core_aten_decompositions
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram, default_decompositions, export

from fxpress import decompose
from tests.support.decomposed import assert_same_program
from tests.support.sampled import turns

pytestmark = pytest.mark.slow("decompositions by torch and by us")

RELU = torch.ops.aten.relu.default
GELU = torch.ops.aten.gelu.default


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (nn.functional.gelu(x).relu() + 1).relu()


class Counting:
    """Sine and cosine in turn."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, x: Tensor, **_: Any) -> Tensor:
        self.calls += 1
        return torch.ops.aten.sin(x) if self.calls % 2 else torch.ops.aten.cos(x)

    def method(self, x: Tensor) -> Tensor:
        return self(x)


class CountingModule(nn.Module):
    def __init__(self, counting: Counting) -> None:
        super().__init__()
        self.counting = counting

    def forward(self, x: Tensor) -> Tensor:
        return self.counting(x)


def wraps(counting: Counting) -> Any:
    @functools.wraps(core_aten_decompositions()[torch.ops.aten.silu.default])
    def function(x: Tensor) -> Tensor:
        return counting(x)

    return function


def named_as_torchs(counting: Counting) -> Any:
    def function(x: Tensor) -> Tensor:
        return counting(x)

    function.__module__ = "torch._decomp.decompositions"
    function.__qualname__ = "_get_decomp_for_cia.<locals>._special_op_to_decompose_cia"
    return function


def as_a_class_of_torchs(counting: Counting) -> Any:
    kind = type("Mine", (Counting,), {"__module__": "torch.nn"})
    made = kind()
    made.__dict__ = counting.__dict__
    return made


FUNCTIONS: dict[str, Callable[[Counting], Any]] = {
    "itself": lambda counting: counting,
    "method": lambda counting: counting.method,
    "closure": lambda counting: lambda x: counting(x),
    "wraps": wraps,
    "partial of wraps": lambda counting: functools.partial(wraps(counting)),
    "named as torch's": named_as_torchs,
    "class named as torch's": as_a_class_of_torchs,
    "in torch's decorator": lambda counting: torch.no_grad()(wraps(counting)),
    "in torch's module": lambda counting: nn.Sequential(CountingModule(counting)),
    "traced": lambda counting: torch.fx.symbolic_trace(lambda x: x.sin()),
}


def both(
    program: Callable[[], ExportedProgram], table: Callable[[], Any]
) -> tuple[ExportedProgram, ExportedProgram]:
    """Return the results of torch and of fxpress for two new programs."""
    made = []
    for run in (ExportedProgram.run_decompositions, decompose.run_decompositions):
        FakeTensorMode.cache_clear()
        made.append(run(program(), table()))
    made[1]._example_inputs = made[0].example_inputs  # each program had its own
    return made[0], made[1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_decompositions(name: str) -> None:
    counters: list[Counting] = []

    def table() -> dict[Any, Any]:
        counters.append(Counting())
        return {RELU: FUNCTIONS[name](counters[-1])}

    theirs, ours = both(lambda: export(Twice(), (torch.randn(4),)), table)
    assert counters[0].calls == counters[1].calls
    assert_same_program(ours, theirs)
    assert "user's" in decompose.report().reason


@pytest.mark.parametrize("name", ["relu", "silu", "gelu", "std_mean", "alias_copy"])
def test_functions_of_torchs_are_torchs(name: str) -> None:
    table = {
        op: f
        for op, f in default_decompositions().materialize().items()
        if op.name().startswith(f"aten::{name}")
    }
    decompose.run_decompositions(export(Twice(), (torch.randn(4),)), table)
    assert decompose.report().reason == ""


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library(f"decompose_{uuid.uuid4().hex}", "DEF") as made:
        made.define("mine(Tensor x) -> Tensor")
        before = len(torch.library._keep_alive)
        yield made
        while len(torch.library._keep_alive) > before:
            torch.library._keep_alive.pop()._destroy()


def composite(library: torch.library.Library, counting: Counting) -> None:
    library.impl("mine", lambda x: counting(x), "CompositeImplicitAutograd")


def autograd(library: torch.library.Library, counting: Counting) -> None:
    library.impl("mine", lambda x: counting(x), "Autograd")
    library.impl("mine", lambda x: x.clone(), "CompositeExplicitAutograd")


def by_name(library: torch.library.Library, counting: Counting) -> None:
    torch.library.impl(f"{library.ns}::mine", "CompositeImplicitAutograd", lambda x: counting(x))


def in_python(library: torch.library.Library, counting: Counting) -> None:
    library.impl("mine", lambda x: x.clone(), "CompositeExplicitAutograd")
    operator = getattr(torch.ops, library.ns).mine.default
    operator.py_impl(torch._C.DispatchKey.Functionalize)(lambda x: counting(x))


TABLES: dict[str, Callable[[], Any]] = {
    "default": lambda: None,
    "empty": dict,
    "core": core_aten_decompositions,
}


@pytest.mark.parametrize(
    ("register", "table"), turns([composite, autograd, by_name, in_python], [*TABLES])
)
def test_kernels_of_operators_of_the_users(
    library: torch.library.Library, register: Callable[..., None], table: str
) -> None:
    counting = Counting()
    register(library, counting)
    operator = getattr(torch.ops, library.ns).mine.default

    class Calls(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return operator(operator(operator(x + 1)) + 1)

    counts = []

    def start() -> Any:
        counts.append(counting.calls)
        counting.calls = 0
        return TABLES[table]()

    programs = [export(Calls(), (torch.randn(4),)) for _ in range(2)]
    theirs, ours = both(programs.pop, start)
    assert counting.calls == counts[1]
    assert_same_program(ours, theirs)
    assert "user's" in decompose.report().reason


def program() -> ExportedProgram:
    return export(Twice(), (torch.randn(4),))


@pytest.mark.parametrize(
    ("key", "table"),
    turns(["Functionalize", "Autograd", "AutogradCPU", "ADInplaceOrView"], ["default", "empty"]),
)
def test_kernels_of_torchs_operators(key: str, table: str) -> None:
    """A kernel is registered and removed, and another one is registered for the same key."""
    assert_same_program(*reversed(both(program, TABLES[table])))
    for kernel in (torch.ops.aten.sin.default, torch.ops.aten.cos.default):
        with torch.library._scoped_library("aten", "IMPL") as made:

            def run(x: Tensor, approximate: str = "none", kernel: Any = kernel) -> Tensor:
                return kernel(x)

            made.impl("gelu", run, key)
            assert_same_program(*reversed(both(program, TABLES[table])))
            assert "aten::gelu" in decompose.report().reason
        decompose.run_decompositions(program(), TABLES[table]())
        assert decompose.report().reason == ""


def test_kernels_for_data_do_not_matter() -> None:
    with torch.library._scoped_library("aten", "IMPL") as made:
        made.impl("gelu", lambda x, approximate="none": x.clone(), "CPU")
        assert_same_program(*reversed(both(program, dict)))
        assert decompose.report().reason == ""


@pytest.mark.parametrize("table", ["default", "empty"])
def test_rules_for_fake_tensors_of_torchs_operators(table: str) -> None:
    both(program, TABLES[table])
    for size in (3, 2):

        def rule(mode: Any, function: Any, x: Tensor, size: int = size) -> Tensor:
            return x.new_empty((1,)) if size == 2 else x.new_empty(x.shape, dtype=torch.float64)

        fake_impls.register_op_impl(RELU)(rule)
        try:
            assert_same_program(*reversed(both(program, TABLES[table])))
        finally:
            fake_impls._deregister_op_impl(RELU)
    assert_same_program(*reversed(both(program, TABLES[table])))


def test_python_kernels_of_torchs_operators() -> None:
    both(program, dict)
    kernels = dict(GELU.py_kernels)
    GELU.py_impl(torch._C.DispatchKey.Functionalize)(lambda x, approximate="none": x.sin())
    try:
        assert_same_program(*reversed(both(program, dict)))
        assert "aten.gelu" in decompose.report().reason
    finally:
        GELU.py_kernels.clear()
        GELU.py_kernels.update(kernels)
        GELU._dispatch_cache.clear()

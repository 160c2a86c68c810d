"""Threads that unflatten, and threads that run one module, get what one thread gets."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import export

from fxpress import _native
from fxpress.unflatten import unflatten
from tests.support.unflatten_compare import assert_same_unflattened
from tests.support.unflatten_models import Deep, Nest, Repeated, Shared, Special

THREADS = 4


def together(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """Runs work(i) in all threads at once."""
    barrier = threading.Barrier(threads)

    def start(i: int) -> Any:
        barrier.wait(timeout=60)
        return work(i)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(start, range(threads), timeout=240))


def x(seed: int = 0) -> torch.Tensor:
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))


BUILDS: list[tuple[type[nn.Module], int, tuple[str, ...]]] = [
    (Nest, 2, ("first",)),
    (Deep, 1, ("block", "block.inner")),
    (Shared, 1, ()),
    (Special, 1, ("inner",)),
]


def test_each_thread_unflattens_its_own_program() -> None:
    programs = [
        export(build(), (x(),) * count, strict=False, preserve_module_call_signature=preserved)
        for build, count, preserved in BUILDS
    ]
    expected = [unflatten(program) for program in programs]
    for ours, other in zip(together(lambda i: unflatten(programs[i])), expected, strict=True):
        assert_same_unflattened(ours, other)
    assert gc.isenabled()
    assert _native.gc_pauses() == 0


def test_all_threads_unflatten_one_program() -> None:
    program = export(Deep(), (x(),), strict=False)
    expected = unflatten(program)
    for ours in together(lambda i: [unflatten(program) for _ in range(5)][-1]):
        assert_same_unflattened(ours, expected, program)


@pytest.mark.parametrize("index", range(len(BUILDS)))
def test_all_threads_run_one_module(index: int) -> None:
    build, count, preserved = BUILDS[index]
    program = export(
        build(), (x(),) * count, strict=False, preserve_module_call_signature=preserved
    )
    module = unflatten(program)
    expected = [program.module()(*(x(i),) * count) for i in range(THREADS)]

    def work(i: int) -> list[torch.Tensor]:
        return [module(*(x(i),) * count) for _ in range(50)]

    for i, results in enumerate(together(work)):  # the first calls make the plans
        for result in results:
            torch.testing.assert_close(result, expected[i])


def test_first_access_to_code_by_all_threads() -> None:
    module = unflatten(export(Deep(), (x(),), strict=False))
    made = together(lambda i: [m.graph_module for m in module.modules() if hasattr(m, "graph")])
    for other in made[1:]:
        assert all(a is b for a, b in zip(made[0], other, strict=True))


def test_first_access_to_the_signature_by_all_threads() -> None:
    for _ in range(20):
        module = unflatten(export(Deep(), (x(),), strict=False))
        made = together(lambda i, module=module: module.graph_signature)
        assert all(signature is made[0] for signature in made)


def test_threads_with_and_without_gradients() -> None:
    model = Nest()
    module = unflatten(export(model, (x(), x()), strict=False))
    expected = model(x(), x())

    def work(i: int) -> bool:
        for _ in range(30):
            with torch.set_grad_enabled(i % 2 == 0):
                result = module(x(), x())
            torch.testing.assert_close(result.detach(), expected.detach())
            assert result.requires_grad == (i % 2 == 0)
        return True

    assert all(together(work))


def test_a_failing_run_does_not_disturb_the_others() -> None:
    """Counters of dispatched calls belong to a run."""
    model = Repeated(nn.Linear(4, 4))
    program = export(model, (x(),), strict=False, preserve_module_call_signature=("inner",))
    module = unflatten(program)
    module.check_input_constraints = False
    expected = program.module()(x())

    def work(i: int) -> int:
        failures = 0
        for _ in range(50):
            try:
                torch.testing.assert_close(module(x() if i % 2 else torch.ones(3, 5)), expected)
            except RuntimeError:
                failures += 1
        return failures

    assert together(work) == [50 if i % 2 == 0 else 0 for i in range(THREADS)]
    torch.testing.assert_close(module(x()), expected)


def test_hooks_come_and_go_while_others_run() -> None:
    model = Nest()
    module = unflatten(export(model, (x(), x()), strict=False))
    expected = model(x(), x())
    seen: list[int] = []

    def work(i: int) -> bool:
        for _ in range(40):
            if i == 0:
                handle = module.first.leaf.register_forward_hook(lambda *a: seen.append(1))
                module(x(), x())
                handle.remove()
            else:
                torch.testing.assert_close(module(x(), x()), expected)
        return True

    assert all(together(work))
    assert len(seen) >= 40

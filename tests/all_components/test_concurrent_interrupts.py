"""Signals at any instant: nothing of the process stays changed."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.fx import _pytree as fx_pytree
from torch.utils import _pytree as pytree

import fxpress
from fxpress import _native
from fxpress._base import frame_space
from fxpress._base.replacement import attribute_block
from fxpress._torch import serde as compat

pytestmark = pytest.mark.slow("separate processes")

QUICK, MANY = 150, 500  # interrupts


class Strike(Exception):
    """The exception that the signal handler raises, wherever the main thread is."""


@dataclass(frozen=True)
class Striker:
    """A thread that sends one signal, after a random time, whenever it is armed."""

    armed: threading.Event
    sent: threading.Event


@contextlib.contextmanager
def strikes(longest: float) -> Iterator[Striker]:
    """A striker that waits at most so many seconds before it sends."""
    armed, sent, over = threading.Event(), threading.Event(), threading.Event()
    source = random.Random(0)

    def strike() -> None:
        while not over.is_set():
            if armed.wait(0.01):
                time.sleep(source.random() * longest)
                armed.clear()
                signal.raise_signal(signal.SIGUSR1)
                sent.set()

    def raise_it(*_: object) -> None:
        raise Strike

    before = signal.signal(signal.SIGUSR1, raise_it)
    thread = threading.Thread(target=strike, daemon=True)
    thread.start()
    try:
        yield Striker(armed, sent)
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def interrupted(work: Callable[[], object], striker: Striker) -> bool:
    """Calls a function again and again until a signal comes; whether it was in the function."""
    inside: list[bool] = [False]
    try:  # around one call: Python's own table of a loop has jumps that no handler covers
        _work_until_struck(work, striker, inside)
    except Strike:
        striker.sent.wait()  # else it could be taken for the next one's
        return inside[0]
    return False


def _work_until_struck(work: Callable[[], object], striker: Striker, inside: list[bool]) -> None:
    striker.sent.clear()
    striker.armed.set()
    while not striker.sent.is_set():  # what is raised in a __del__ is lost
        inside[0] = True
        work()
        inside[0] = False
    for _ in range(10):
        time.sleep(0)  # Python calls the handler here at the latest


def names_of_modules() -> dict[tuple[str, str], int]:
    """Return, for each name in each module, the object to which it refers."""
    return {
        (key, name): id(value)
        for key, module in sys.modules.copy().items()
        if isinstance(module, types.ModuleType)
        for name, value in vars(module).copy().items()
    }


class Names:
    """The names that an installation rebinds."""

    def __init__(self) -> None:
        with fxpress.installed():
            pass  # everything is imported
        self.before = names_of_modules()
        with fxpress.installed():
            during = names_of_modules()
        self.replaced = [key for key, value in during.items() if self.before.get(key) != value]
        assert len(self.replaced) > 100
        self.check()

    def check(self) -> None:
        """Check that all names refer to the same objects as before."""
        for module, name in self.replaced:
            assert id(vars(sys.modules[module])[name]) == self.before[module, name]

    def check_all(self) -> None:
        now = names_of_modules()
        assert all(now.get(key) == value for key, value in self.before.items())


def run_strikes(count: int, longest: float, work: Callable[[], object], check: Any) -> int:
    """How many of the signals came while the work ran; `check` is called after each."""
    inside = 0
    with strikes(longest) as striker:
        for _ in range(count):
            inside += interrupted(work, striker)
            check()
    return inside


def install_and_uninstall() -> None:
    with fxpress.installed(), contextlib.suppress(ValueError), fxpress.installed():
        pass


def in_and_out() -> None:
    fxpress.install()
    fxpress.uninstall()


def strike_installed(count: int) -> int:
    """How many of the signals came while fxpress was installed, or on its way there or back."""
    names = Names()

    def check() -> None:
        assert not fxpress.is_installed()
        assert fxpress._install._installation.leases == 0
        names.check()

    inside = run_strikes(count, 0.01, install_and_uninstall, check)
    names.check_all()
    return inside


@pytest.mark.parametrize(
    "count",
    [QUICK, pytest.param(MANY, marks=pytest.mark.deep("500 signals"))],
    ids=["quick", "many"],
)
def test_interrupts_of_installed(count: int) -> None:
    """In a process that has run nothing else: after many tests, few signals came inside."""
    code = f"from {__name__} import strike_installed; print(strike_installed({count}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > count // 10  # the test tests something


def test_interrupts_of_install_leave_a_whole() -> None:
    """`install()` has no block: after an interrupt it is in force, or not, and never in part."""
    names = Names()

    def check() -> None:
        while fxpress._install._installation.leases:
            assert fxpress.is_installed()
            fxpress.uninstall()
        assert not fxpress.is_installed()
        names.check()

    run_strikes(QUICK, 0.01, in_and_out, check)
    names.check_all()


variable = contextvars.ContextVar("variable", default=0)


class Owner:
    value = 1


def blocks() -> None:
    with (
        _native.GcPause(),
        _native.RareCollections(),
        attribute_block(Owner, "value", 2),
        _native.Block(lambda: variable.set(1), variable.reset),
        fxpress.functional_export.check_constraints("light"),
        fxpress.unflatten._disable_interpreter(),
        fxpress._install._installation.left_to_torch(),
    ):
        frame_space.call_with_space(sum, (1, 2))


def test_interrupts_of_blocks() -> None:
    """Each of them is over when the block is left."""
    import fxpress.functional_export
    import fxpress.unflatten

    thresholds, check_name = gc.get_threshold(), fxpress._graphs.capture.constraints._check
    assert gc.isenabled()

    def check() -> None:
        assert gc.isenabled()
        assert _native.gc_pauses() == 0
        assert gc.get_threshold() == thresholds
        assert Owner.value == 1
        assert check_name.get() == "guards"
        assert fxpress.unflatten.RUN_WITH_INTERPRETER is True
        assert not fxpress._install._installation._here.left
        assert not frame_space.has_space()

    assert run_strikes(2 * QUICK, 0.001, blocks, check) > QUICK // 10


class Given(torch.nn.Module):
    """A class of modules among the inputs of a program."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))


# A signal may come in a __del__, where what the handler raises is printed and lost.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_of_inputs_that_are_modules() -> None:
    """torch's tables of trees know the class as long as somebody needs it."""
    given = Given()

    def check() -> None:
        assert not compat._module_uses
        assert Given not in pytree.SUPPORTED_NODES
        assert Given not in pytree.SUPPORTED_SERIALIZED_TYPES
        assert Given not in fx_pytree.SUPPORTED_NODES

    def work() -> None:
        with compat.module_inputs((given, 1)):
            assert len(pytree.tree_leaves(given)) == 1

    assert run_strikes(QUICK, 0.0005, work, check) > QUICK // 10
    work()
    check()

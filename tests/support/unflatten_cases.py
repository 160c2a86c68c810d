"""Running torch's unflatten and ours side by side."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.export import ExportedProgram, export
from torch.export import unflatten as torch_unflatten
from torch.nn import Module

from fxpress.unflatten import unflatten
from tests.support.unflatten_compare import (
    assert_runs_as_eager,
    assert_same_outputs,
    assert_same_unflattened,
    assert_untouched,
    run,
    snapshot,
)


def quietly(program: ExportedProgram, *adapter: Any, **options: Any) -> Any:
    """Return fxpress's result; assert that it prints nothing and does not change the program."""
    before = snapshot(program)
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            return unflatten(program, *adapter, **options)
    finally:
        assert printed.getvalue() == ""
        assert_untouched(program, before)


def torchs(program: ExportedProgram, *adapter: Any) -> Any:
    """Return torch's result without its output. Call it last: torch changes the program."""
    with redirect_stdout(io.StringIO()):
        return torch_unflatten(program, *adapter)


@dataclass(frozen=True)
class Unflattened:
    """A program that both sides have unflattened."""

    ours: Any
    theirs: Any  # None where torch fails or is wrong


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of `call`, or its exception."""
    try:
        return call()
    except Exception as error:
        return error


def is_right(theirs: Module, eager: Module, args: Any, kwargs: Any) -> bool:
    """Whether torch's module gives the eager result; both may change their state."""

    def compare() -> bool:
        with redirect_stdout(io.StringIO()):
            assert_runs_as_eager(theirs, eager, args, kwargs)
        return True

    return outcome(compare) is True


def merges_more(theirs: Module, ours: Module) -> bool:
    """Whether torch has merged calls with equal graphs that call different modules."""
    names = [{n for n, _ in m.named_modules(remove_duplicate=False)} for m in (theirs, ours)]
    return names[0] < names[1]


def assert_unflattens_as_torch(
    program: ExportedProgram,
    eager: Module | None = None,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    gradients: bool = False,
    code: bool = True,
    tolerant: bool = False,
) -> Unflattened:
    """Unflatten with both, compare everything, and run ours beside the eager module.

    Args:
        program: the program; fxpress must not change it, torch does.
        eager: the exported module, with its state at the time of the export; a run may change it.
        args, kwargs: inputs.
        gradients: whether to compare gradients too.
        code: whether to compare generated sources.
        tolerant: torch may fail, or return a module that differs from the eager one. fxpress's
            module must then equal the eager one, or both must raise exceptions of one type.
    """
    ours = outcome(partial(quietly, program))
    theirs = outcome(partial(torchs, program))
    torch_fails = isinstance(theirs, Exception)
    if tolerant and torch_fails and isinstance(ours, Exception):
        assert isinstance(ours, type(theirs)), f"torch: {theirs!r}; ours: {ours!r}"
        return Unflattened(None, None)
    for result, fails in ((ours, True), (theirs, not tolerant)):
        if isinstance(result, Exception) and fails:
            raise result
    if eager is None:
        assert not torch_fails, f"torch fails, and there is nothing to compare with: {theirs!r}"
    if not torch_fails:
        right = not tolerant or eager is None
        if eager is not None and not right and not merges_more(theirs, ours):
            right = is_right(theirs, copy.deepcopy(eager), args, kwargs)
        if right:
            theirs = torchs(program)
            assert_same_unflattened(ours, theirs, program, code=code)
            if eager is not None:
                assert_as_torch_runs(ours, theirs, args, kwargs)
                ours = quietly(program)  # the first one may have changed its state
        else:
            theirs = None
    if eager is not None:
        assert_runs_as_eager(ours, eager, args, kwargs, gradients=gradients)
    return Unflattened(ours, None if torch_fails else theirs)


def assert_as_torch_runs(
    ours: Module, theirs: Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None
) -> None:
    """Assert that the results equal torch's bit for bit, if torch's module runs."""
    try:
        with redirect_stdout(io.StringIO()):
            wanted = run(theirs, args, kwargs)
    except Exception:
        return
    got = run(ours, args, kwargs)
    assert_same_outputs(got[0], wanted[0], exact=True, at="outputs")
    for a, b in zip(got[1], wanted[1], strict=True):
        assert_same_outputs(a, b, exact=True, at="inputs after the call")


def exported(model: Module, *args: Any, strict: bool = False, **options: Any) -> ExportedProgram:
    return export(model, args, options.pop("kwargs", None), strict=strict, **options)


def both(model: Module, *args: Any, **options: Any) -> Unflattened:
    """`model` exported, and unflattened by both, without any comparison."""
    program = exported(model, *args, **options)
    ours = quietly(program)
    return Unflattened(ours, torchs(program))


def ours_of(model: Module, *args: Any, **options: Any) -> Any:
    return quietly(exported(model, *args, **options))


def dynamic_batch(*args: torch.Tensor) -> tuple[dict[int, Any], ...]:
    """Dynamic shapes: the first dimension of every input is one symbol."""
    batch = torch.export.Dim("batch", min=2, max=64)
    return tuple({0: batch} for _ in args)

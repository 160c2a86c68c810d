"""Threads that make modules of one program, and call them for the first time at once."""

from __future__ import annotations

import gc

import torch
from torch.export import export

from fxpress import _native
from fxpress.export import module
from tests.support.unflatten_models import Nest
from tests.support.unlifted import assert_same_module, torchs
from tests.unflatten.test_concurrent_threads import together

X = torch.linspace(-1.0, 1.0, 12).view(3, 4)


def test_all_threads_make_modules_of_one_program() -> None:
    program = export(Nest(), (X, X), strict=False)
    theirs = torchs(program)
    for ours in together(lambda _: module(program)):
        assert_same_module(ours, theirs)
    assert gc.isenabled()
    assert _native.gc_pauses() == 0


def test_all_threads_call_one_module_first() -> None:
    program = export(Nest(), (X, X), strict=False)
    wanted = torchs(program)(X, X)
    for engine in (False, True):
        made = module(program, engine=engine)
        for result in together(lambda _, made=made: made(X, X)):
            torch.testing.assert_close(result, wanted, rtol=0, atol=0)

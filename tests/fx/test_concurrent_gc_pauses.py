"""Pauses of the garbage collector, one within another and for long."""

from __future__ import annotations

import gc
import time

import pytest

from fxpress import _native


def test_the_last_pause_ends_it() -> None:
    assert gc.isenabled()
    with _native.GcPause():
        with _native.GcPause():
            assert not gc.isenabled()
        assert not gc.isenabled()
        assert _native.gc_pauses() == 1
    assert gc.isenabled()


def test_a_collector_that_stands_still_already_stays_so() -> None:
    gc.disable()
    try:
        with _native.GcPause():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


@pytest.mark.deep("waits for ten seconds")
def test_pauses_that_never_stop_overlapping_end() -> None:
    first, second = _native.GcPause(), _native.GcPause()
    first.__enter__()
    try:
        with second:
            time.sleep(10.5)
            assert not gc.isenabled()
        assert gc.isenabled()  # though the first is in force
    finally:
        first.__exit__(None, None, None)
    assert gc.isenabled()
    with _native.GcPause():
        assert not gc.isenabled()
    assert gc.isenabled()

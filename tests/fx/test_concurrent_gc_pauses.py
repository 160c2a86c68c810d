"""Pauses of the garbage collector, one within another and for long."""

from __future__ import annotations

import gc
import itertools
import time

import pytest

from fxpress import _native


def is_paused() -> bool:
    return gc.get_threshold()[0] == 2**31 - 1  # young objects


def test_the_last_pause_ends_it() -> None:
    thresholds = gc.get_threshold()
    with _native.GcPause():
        with _native.GcPause():
            assert is_paused()
        assert is_paused()
        assert _native.gc_pauses() == 1
    assert gc.get_threshold() == thresholds


def test_a_collector_that_stands_still_already_stays_so() -> None:
    thresholds = gc.get_threshold()
    gc.disable()
    gc.set_threshold(0)
    try:
        with _native.GcPause():
            pass
        assert gc.get_threshold()[0] == 0
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)


@pytest.mark.deep("waits for ten seconds")
def test_pauses_that_never_stop_overlapping_end() -> None:
    first, second = _native.GcPause(), _native.GcPause()
    first.__enter__()
    try:
        with second:
            time.sleep(10.5)
            assert is_paused()
        assert not is_paused()  # though the first is in force
    finally:
        first.__exit__(None, None, None)
    assert not is_paused()
    with _native.GcPause():
        assert is_paused()
    assert not is_paused()


@pytest.mark.parametrize("enabled", [False, True])
def test_what_other_code_does_with_the_collector_during_a_pause_holds(enabled: bool) -> None:
    thresholds = gc.get_threshold()
    try:
        (gc.disable if enabled else gc.enable)()
        with _native.GcPause(), _native.RareCollections():
            (gc.enable if enabled else gc.disable)()
        assert gc.isenabled() is enabled
        assert gc.get_threshold() == thresholds
        with _native.GcPause(), _native.RareCollections():
            gc.set_threshold(123, 4, 5)
        assert gc.get_threshold() == (123, 4, 5)
    finally:
        gc.enable()
        gc.set_threshold(*thresholds)


def test_pauses_that_overlap_end_in_any_order() -> None:
    thresholds = gc.get_threshold()
    for order in itertools.permutations(range(3)):
        blocks = [_native.GcPause(), _native.RareCollections(), _native.GcPause()]
        for block in blocks:
            block.__enter__()
        for position in order:
            blocks[position].__exit__(None, None, None)
        assert gc.get_threshold() == thresholds

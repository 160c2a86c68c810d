"""The tiers of the tests, and what is the same for all of them.

A file's name says its kind: `test_<what>.py` holds unit tests, and `test_differential_<what>.py`,
`test_property_*`, `test_memory*`, `test_concurrent*` and `test_scaling*` hold the others. Unit
tests are `fast`. Tests that take longer are `slow` or `deep`, and say why. With FXPRESS_SIXTH=0 to
5, a run has a sixth of these, and those that have caught a planted fault. With
FXPRESS_SKIPS=strict, a run fails when a test is skipped that the list does not allow.
"""

from __future__ import annotations

import gc
import logging
import os
import zlib
from pathlib import Path

import pytest
import torch
from torch._dynamo import guards
from torch._export import utils as export_utils
from torch._logging._internal import trace_log

from tests.support.skips import Skip, not_allowed, read_allowed

_ALLOWED = Path(__file__).with_name("allowed_skips.txt")
_FAULTS = Path(__file__).parents[1] / "tools/faults/faults.toml"
_KINDS = ("differential", "property", "memory", "concurrent", "scaling")
_NOT_ALLOWED = pytest.StashKey[list[Skip]]()


def _add_handler(handler: logging.Handler) -> None:
    """Add a handler to torch's log of traces, unless it is pytest's.

    With a handler, torch prints each graph for the log, and fxpress takes the ways of captures that
    are logged: users have none.
    """
    if not type(handler).__module__.startswith("_pytest."):
        logging.Logger.addHandler(trace_log, handler)


trace_log.addHandler = _add_handler  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _collections_look_at_new_objects() -> None:
    """A test causes collections of garbage; they skip the million objects that were there before.

    They took a third of all time.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _compilations_time_no_guards() -> None:
    """torch empties the processor's caches in each compilation, to time the new guards.

    That took a fifth of the time of the tests that compile; the figure is only logged.
    """
    if hasattr(guards, "profile_guard_manager"):
        guards.profile_guard_manager = lambda *_: 0.0


@pytest.fixture(autouse=True, scope="session")
def _operators_are_looked_up_once() -> None:
    """torch looks up all composite operators in each export and decomposition.

    That took a thirtieth of the time of the tests.
    """
    look_up = export_utils._materialize_cpp_cia_ops
    known: list[str] = []

    def look_up_new() -> None:
        found = torch._C._dispatch_get_registrations_for_dispatch_key("CompositeImplicitAutograd")
        if found != known:
            look_up()
            known[:] = found

    export_utils._materialize_cpp_cia_ops = look_up_new


def _is_unit_test(item: pytest.Item) -> bool:
    return not item.path.stem.startswith(tuple(f"test_{kind}" for kind in _KINDS))


def _leave_out_other_sixths(items: list[pytest.Item]) -> None:
    sixth = os.environ.get("FXPRESS_SIXTH")
    if sixth is None:
        return
    faults = _FAULTS.read_text()
    items[:] = [
        item
        for item in items
        if not any(map(item.get_closest_marker, ("slow", "deep")))
        or f"'{item.nodeid}'" in faults
        # All components of a program of the corpus belong to one sixth.
        or zlib.crc32((item.nodeid.rpartition("-")[0] or item.nodeid).encode()) % 6 == int(sixth)
    ]


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _leave_out_other_sixths(items)
    for item in items:
        slow = False
        for name in ("slow", "deep", "browser"):
            for marker in item.iter_markers(name):
                slow = True
                if len(marker.args) != 1 or not isinstance(marker.args[0], str):
                    raise pytest.UsageError(f"{item.nodeid}: {name} takes a reason")
        if not slow and _is_unit_test(item):
            item.add_marker("fast")


def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    # A worker of xdist sees its own tests alone.
    if os.environ.get("FXPRESS_SKIPS") != "strict" or hasattr(config, "workerinput"):
        return
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skips = [(report.nodeid, _reason(report)) for report in reporter.stats.get("skipped", [])]
    config.stash[_NOT_ALLOWED] = not_allowed(skips, read_allowed(_ALLOWED))
    if config.stash[_NOT_ALLOWED] and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if skips := terminalreporter.config.stash.get(_NOT_ALLOWED, []):
        terminalreporter.section(f"skipped, and not in {_ALLOWED.name}", red=True)
        for test, reason in skips:
            terminalreporter.write_line(f"{test} | {reason}")


def _reason(report: pytest.TestReport) -> str:
    *_, reason = report.longrepr if isinstance(report.longrepr, tuple) else (report.longrepr,)
    return str(reason).removeprefix("Skipped: ")

"""Every deep test says why it is one; collections of garbage look at what a test makes.
With FXPRESS_SKIPS=strict, a run fails when a test is skipped that the list does not allow."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from tests.support.skips import Skip, not_allowed, read_allowed

_ALLOWED = Path(__file__).with_name("allowed_skips.txt")
_NOT_ALLOWED = pytest.StashKey[list[Skip]]()


@pytest.fixture(autouse=True)
def _collections_look_at_new_objects() -> None:
    """What is there before a test, a million objects of torch and of other tests, is not looked at
    by the collections of garbage that the test causes: they took a third of all time."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("deep"):
            if len(marker.args) != 1 or not isinstance(marker.args[0], str):
                raise pytest.UsageError(f"{item.nodeid}: what is deep takes a reason")


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

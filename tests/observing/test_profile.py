"""`fxpress.profile`: events, the table and the trace."""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from pathlib import Path

import pytest
from torch.export import ExportedProgram

import fxpress
from fxpress._tools.profile import table_of
from fxpress._torch import watching
from fxpress.unflatten import unflatten
from tests.observing.operations import OPERATIONS, Operation


@pytest.fixture
def path(program: ExportedProgram, tmp_path: Path) -> Path:
    fxpress.save(program, tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.function.__name__)
def test_every_operation_is_noted(
    operation: Operation, program: ExportedProgram, path: Path
) -> None:
    with fxpress.profile() as profile:
        operation.call(program, path)
    calls = [event for event in profile.events if event.parent is None]
    assert calls[-1].name == operation.name
    assert all(event.is_operation for event in calls)
    assert calls[-1].sizes
    assert calls[-1].error is None


def test_phases_are_within_their_operations(program: ExportedProgram) -> None:
    with fxpress.profile() as profile:
        fxpress.save(program, io.BytesIO())
        fxpress.graph_hash(program)
    save, *rest = profile.events
    assert (save.name, save.parent) == ("save", None)
    phases = [event for event in rest if event.parent is save]
    assert [event.name for event in phases] == [
        "graph",
        "example inputs",
        "writing weights",
        "writing constants",
        "putting in place",
    ]
    assert phases[0].path == "save.graph"
    assert sum(event.wall for event in phases) <= save.wall
    for event in profile.events:
        if event.parent is not None:
            assert event.parent.start <= event.start
            assert event.start + event.wall <= event.parent.start + event.parent.wall
    assert profile.events[-3].name == "graph_hash"
    assert profile.events[-3].sizes == {"nodes": len(program.graph.nodes)}


def test_sizes(program: ExportedProgram, path: Path) -> None:
    nodes = len(program.graph.nodes)
    with fxpress.profile() as profile:
        loaded = fxpress.load(path)
        modules = len(list(unflatten(loaded).modules()))
    sizes = {event.name: event.sizes for event in profile.events if event.is_operation}
    assert sizes["load"] == {"nodes": nodes, "bytes": path.stat().st_size}
    assert sizes["unflatten"] == {"nodes": nodes, "modules": modules}


def test_errors_are_noted(program: ExportedProgram, tmp_path: Path) -> None:
    with fxpress.profile() as profile, pytest.raises(FileNotFoundError):
        fxpress.load(tmp_path / "nothing.pt2")
    (event,) = profile.events
    assert (event.name, event.error, event.sizes) == ("load", "FileNotFoundError", {})
    assert "FileNotFoundError" in str(profile)
    fxpress.graph_hash(program)
    assert watching._here.event is None


def test_only_what_is_in_the_block(program: ExportedProgram) -> None:
    fxpress.graph_hash(program)
    with fxpress.profile() as outer:
        fxpress.graph_hash(program)
        with fxpress.profile() as inner:
            unflatten(program)
    fxpress.graph_hash(program)
    assert {event.name for event in outer.events if event.is_operation} == {
        "graph_hash",
        "unflatten",
    }
    assert {event.name for event in inner.events if event.is_operation} == {"unflatten"}
    with outer:
        fxpress.graph_hash(program)
        with pytest.raises(RuntimeError, match="already active"), outer:
            pass
    assert len([event for event in outer.events if event.name == "graph_hash"]) == 2
    assert watching.watchers == []


def test_a_profile_that_ends_first_does_not_get_the_rest(program: ExportedProgram) -> None:
    profile = fxpress.profile()
    profile.__enter__()

    def end(done: int, total: int, what: str) -> None:
        if done == 0:
            profile.__exit__(None, None, None)

    fxpress.graph_hash(program, include_state=True, progress=end)
    assert [event.name for event in profile.events] == ["graph"]
    assert [line.split()[0] for line in str(profile).splitlines()[1:]] == ["graph"]


def test_threads_are_kept_apart(program: ExportedProgram) -> None:
    begun = threading.Barrier(3)

    def work() -> None:
        begun.wait(60)
        fxpress.graph_hash(program, include_state=True, progress=lambda *_: begun.wait(60))

    # Each waits at the same steps, so that the calls overlap.
    threads = [threading.Thread(target=work, name=f"worker {i}") for i in range(3)]
    with fxpress.profile() as profile:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    calls = [event for event in profile.events if event.parent is None]
    assert {event.thread for event in calls} == {thread.native_id for thread in threads}
    for event in profile.events:
        assert event.parent is None or event.parent.thread == event.thread
        assert event.thread_name.startswith("worker ")
    assert max(event.start for event in calls) < min(event.start + event.wall for event in calls)
    for thread in threads:
        assert f"thread {thread.name}" in str(profile)


def test_nobody_who_watches_means_no_events(
    program: ExportedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_Watched", None)
    unflatten(program)
    fxpress.load(_saved(program))


def _saved(program: ExportedProgram) -> io.BytesIO:
    file = io.BytesIO()
    fxpress.save(program, file)
    return file


def _event(
    name: str, number: int, parent: fxpress.Event | None = None, **facts: object
) -> fxpress.Event:
    made = fxpress.Event(name, parent is None, parent, number, 1, "main", 0.0, 0.0)
    for key, value in facts.items():
        setattr(made, key, value)
    return made


def test_the_table() -> None:
    first = _event("save", 0, wall=0.5, processor=0.25, sizes={"nodes": 1154, "bytes": 37700})
    second = _event("save", 3, wall=0.0123, processor=0.01, error="OSError")
    events = [
        first,
        _event("weights", 1, first, wall=0.2, processor=0.000125),
        _event("weights", 2, first, wall=0.2, processor=0.000125),
        second,
    ]
    assert table_of(events, each_call=True).splitlines() == [
        "           calls     wall  processor",
        "save           1   500 ms     250 ms  1,154 nodes, 37.7 kB",
        "  weights      2   400 ms     250 us",
        "save           1  12.3 ms      10 ms  OSError",
    ]
    assert table_of(events, each_call=False).splitlines() == [
        "           calls    wall  processor",
        "save           2  512 ms     260 ms  1,154 nodes, 37.7 kB  OSError",
        "  weights      2  400 ms     250 us",
    ]
    assert table_of([], each_call=True) == "  calls  wall  processor"


def test_the_trace(program: ExportedProgram, tmp_path: Path) -> None:
    with fxpress.profile() as profile:
        fxpress.graph_hash(program)
    profile.save(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    named, *slices = trace["traceEvents"]
    assert named["ph"] == "M"
    assert named["args"] == {"name": threading.current_thread().name}
    assert [each["name"] for each in slices] == ["fxpress.graph_hash", "graph", "values"]
    assert [each["cat"] for each in slices] == ["operation", "phase", "phase"]
    assert slices[0]["args"] == {"nodes": len(program.graph.nodes)}
    for each, event in zip(slices, profile.events, strict=True):
        assert (each["ph"], each["pid"], each["tid"]) == ("X", os.getpid(), event.thread)
        assert each["dur"] == pytest.approx(event.wall * 1e6)
        assert each["tdur"] == pytest.approx(event.processor * 1e6)
        # Slices nest where their times do.
        assert slices[0]["ts"] <= each["ts"]
        assert each["ts"] + each["dur"] <= slices[0]["ts"] + slices[0]["dur"] + 1e-3
    assert slices[0]["ts"] >= 0


def test_a_profile_of_a_call_that_is_logged_too(
    program: ExportedProgram, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fxpress.operations"), fxpress.profile() as profile:
        fxpress.graph_hash(program)
    assert len(profile.events) == 3
    assert len(caplog.records) == 1

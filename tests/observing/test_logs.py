"""The logger `fxpress.operations`."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from torch.export import ExportedProgram

import fxpress
from fxpress import state
from fxpress._base.observing.text import bytes_text, duration_text, sizes_text
from fxpress.split_module import split_module
from tests.observing.operations import OPERATIONS, Operation

LOGGER = "fxpress.operations"
TIME = r"[\d.,]+ (s|ms|us)"


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if (r.name, r.levelno) == (LOGGER, level)]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.function.__name__)
def test_one_line_for_a_call(
    operation: Operation, program: ExportedProgram, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "model.pt2"
    fxpress.save(program, path)
    with caplog.at_level(logging.INFO, LOGGER):
        operation.call(program, path)
    *_, line = lines(caplog, logging.INFO)
    name = re.escape(f"fxpress.{operation.name}")
    assert re.fullmatch(rf"{name}: [\d,.]+ \w+.* in {TIME}", line), line
    assert [line.partition(":")[0] for line in lines(caplog, logging.INFO)].count(
        f"fxpress.{operation.name}"
    ) == 1


def test_the_sizes_are_in_the_line(
    program: ExportedProgram, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    nodes = len(program.graph.nodes)
    with caplog.at_level(logging.INFO, LOGGER):
        fxpress.save(program, tmp_path / "model.pt2")
        with pytest.raises(FileNotFoundError):
            fxpress.load(tmp_path / "nothing.pt2")
    saved, failed = lines(caplog, logging.INFO)
    size = bytes_text((tmp_path / "model.pt2").stat().st_size)
    assert re.fullmatch(rf"fxpress\.save: {nodes} nodes, {re.escape(size)} in {TIME}", saved)
    assert re.fullmatch(rf"fxpress\.load: FileNotFoundError after {TIME}", failed)


def test_phases_and_inner_calls_are_for_those_who_debug(
    program: ExportedProgram, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    fxpress.save(program, tmp_path / "model.pt2")
    loaded = fxpress.load(tmp_path / "model.pt2", load_weights=False)
    with caplog.at_level(logging.DEBUG, LOGGER):
        fxpress.graph_hash(program)
        state.load_into(loaded, tmp_path / "model.pt2")
    assert [line.partition(":")[0] for line in lines(caplog, logging.INFO)] == [
        "fxpress.graph_hash",
        "fxpress.state.load_into",
    ]
    *phases, read = lines(caplog, logging.DEBUG)
    assert re.fullmatch(rf"fxpress\.graph_hash\.graph in {TIME}", phases[0])
    assert re.fullmatch(rf"fxpress\.state\.read: .* in {TIME}", read)


def test_nothing_is_logged_unasked(
    program: ExportedProgram, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "getLogRecordFactory", None)
    with caplog.at_level(logging.WARNING, "fxpress"):
        fxpress.graph_hash(program)
    assert not lines(caplog, logging.INFO)


def test_the_logs_of_splits_are_asked_for_by_themselves(
    program: ExportedProgram, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "fxpress"):
        split_module(program.graph_module, None, lambda node: 0)
    assert [record.name for record in caplog.records] == [LOGGER]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"),
        (4.2e-7, "0.42 us"),
        (9.994e-4, "999 us"),
        (9.996e-4, "1 ms"),
        (0.0123, "12.3 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (12.34, "12.3 s"),
        (999.6, "1,000 s"),
        (4321.0, "4,321 s"),
    ],
)
def test_times_have_three_digits(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_sizes_as_text() -> None:
    assert sizes_text({"nodes": 1154, "modules": 1, "bytes": 37700}) == (
        "1,154 nodes, 1 module, 37.7 kB"
    )
    assert sizes_text({}) == ""

"""The values that `progress=` accepts, and the calls of a progress function."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram, export

import fxpress
from fxpress import state
from fxpress._base.observing import progress as progress_module
from fxpress._base.observing.progress import check_progress
from fxpress._files.tensors import copies as copying
from fxpress.serialize import serialize
from fxpress.unflatten import unflatten
from tests.observing.operations import OPERATIONS, WITH_PROGRESS, Operation

Reports = list[tuple[int, int, str]]
EACH = pytest.mark.parametrize(
    "operation", WITH_PROGRESS, ids=lambda each: each.function.__qualname__
)


@pytest.fixture
def path(program: ExportedProgram, tmp_path: Path) -> Path:
    fxpress.save(program, tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


def runs_of(reports: Reports) -> list[Reports]:
    """Return the reports, apart where a new count begins."""
    runs: list[Reports] = []
    for report in reports:
        if report[0] == 0:
            runs.append([])
        runs[-1].append(report)
    return runs


@EACH
def test_functions_are_told(operation: Operation, program: ExportedProgram, path: Path) -> None:
    reports: Reports = []
    operation.call(program, path, progress=lambda *report: reports.append(report))
    runs = runs_of(reports)
    assert runs
    for run in runs:
        (total,) = {total for _, total, _ in run}
        (what,) = {what for _, _, what in run}
        dones = [done for done, _, _ in run]
        assert dones == sorted(set(dones))
        assert (dones[0], dones[-1]) == (0, total)
        assert what.split(": ")[0] == operation.doing
        assert what.split(": ")[1] in ("bytes", "nodes", "steps")


@EACH
def test_exceptions_of_functions_pass_through(
    operation: Operation, program: ExportedProgram, path: Path
) -> None:
    class EnoughError(Exception):
        pass

    def stop(done: int, total: int, what: str) -> None:
        if done:
            raise EnoughError

    with pytest.raises(EnoughError):
        operation.call(program, path, progress=stop)
    operation.call(program, path)


@EACH
@pytest.mark.parametrize(
    "wrong", [1, "yes", int, io.BytesIO()], ids=["number", "text", "class", "file"]
)
def test_what_shows_no_progress_is_refused(
    operation: Operation, wrong: Any, program: ExportedProgram, path: Path
) -> None:
    with pytest.raises(TypeError, match="progress must be a bool, a function"):
        operation.call(program, path, progress=wrong)


@EACH
def test_without_tqdm(
    operation: Operation, program: ExportedProgram, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "_bar_class", lambda: None)
    with pytest.raises(ImportError, match=r"pip install 'fxpress\[progress\]'"):
        operation.call(program, path, progress=True)
    operation.call(program, path, progress=False)
    operation.call(program, path, progress=None)


def test_a_save_that_is_stopped_leaves_the_file(program: ExportedProgram, path: Path) -> None:
    before = path.read_bytes()

    def stop(done: int, total: int, what: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fxpress.save(program, path, progress=stop)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("weights", ["inline", "safetensors"])
def test_errors_of_the_system_are_those_of_the_function(
    program: ExportedProgram, tmp_path: Path, weights: Any
) -> None:
    error = BrokenPipeError(errno.EPIPE, "the caller's")

    def stop(done: int, total: int, what: str) -> None:
        if done:
            raise error

    path = tmp_path / "model.pt2"
    with pytest.raises(BrokenPipeError) as saving:
        fxpress.save(program, path, weights=weights, progress=stop)
    assert not path.exists()
    fxpress.save(program, path, weights=weights)
    with pytest.raises(BrokenPipeError) as loading:
        fxpress.load(path, progress=stop)
    assert saving.value is loading.value is error
    assert error.filename is None


def test_true_is_a_bar(program: ExportedProgram, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    fxpress.save(program, io.BytesIO(), progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "saving: 100%" in err


def test_false_is_no_bar(
    program: ExportedProgram, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_module, "_is_terminal", lambda: True)
    monkeypatch.setattr(progress_module, "_DELAY", 0.0)
    fxpress.save(program, io.BytesIO(), progress=False)
    assert capsys.readouterr().err == ""


BARS = {
    "tqdm": pytest.importorskip("tqdm").tqdm(total=0, file=io.StringIO()),
    "rich": pytest.importorskip("rich.progress").Progress(),
}


@EACH
@pytest.mark.parametrize("package", BARS)
def test_bars_are_refused_with_a_replacement(
    operation: Operation, package: str, program: ExportedProgram, path: Path
) -> None:
    with pytest.raises(TypeError, match="pass a callable: progress=lambda done, total, what: bar"):
        operation.call(program, path, progress=BARS[package])


def replacement(bar: object) -> str:
    with pytest.raises(TypeError) as raised:
        check_progress(bar)  # type: ignore[arg-type]
    return str(raised.value).rpartition("progress=")[2]


def test_the_replacements_work(program: ExportedProgram) -> None:
    expected = sum(value.nbytes for value in program.state_dict.values())
    with pytest.importorskip("tqdm").tqdm(file=io.StringIO(), total=expected) as bar:
        fxpress.save(program, io.BytesIO(), progress=eval(replacement(bar), {"bar": bar}))
        assert bar.n == expected
    bar = pytest.importorskip("rich.progress").Progress()
    task = bar.add_task("saving")
    names = {"bar": bar, "task": task}
    fxpress.save(program, io.BytesIO(), progress=eval(replacement(bar), names))
    assert (bar.tasks[task].completed, bar.tasks[task].total) == (expected, expected)


def test_nothing_to_do_is_not_reported() -> None:
    reports: Reports = []
    assert state.clone({}, progress=lambda *report: reports.append(report)) == {}
    assert reports == []


def test_weights_beside_the_archive_are_reported(program: ExportedProgram, tmp_path: Path) -> None:
    path, size = tmp_path / "model.pt2", sum(v.nbytes for v in program.state_dict.values())
    saving: Reports = []
    fxpress.save(program, path, weights="safetensors", progress=lambda *each: saving.append(each))
    loading: Reports = []
    fxpress.load(path, progress=lambda *each: loading.append(each))
    assert saving[-1] == (size, size, "saving: bytes")
    assert loading[-1] == (size, size, "loading: bytes")


@pytest.fixture
def aliased() -> dict[str, torch.Tensor]:
    whole = torch.arange(24.0)
    return {
        "a": whole[:8],
        "alone": torch.ones(3),
        "b": whole[4:12].view(2, 4),
        "again": whole[:8],
        "sparse": torch.eye(2).to_sparse(),
    }


def test_state_of_rare_kinds_is_counted() -> None:
    class Sparse(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("sparse", torch.eye(3).to_sparse())
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(self.sparse, self.linear(x))

    program = export(Sparse(), (torch.ones(3, 3),), strict=False)
    for call in (
        lambda show: serialize(program, progress=show),
        lambda show: fxpress.graph_hash(program, include_state=True, progress=show),
        lambda show: state.clone(program.state_dict, progress=show),
    ):
        reports: Reports = []
        call(lambda *each, reports=reports: reports.append(each))
        assert reports[-1][0] == reports[-1][1] > 0


def test_copies_in_parts_share_what_the_originals_share(
    aliased: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_PART", 1)
    reports: Reports = []
    copies = state.clone(aliased, progress=lambda *report: reports.append(report))
    assert [done for done, _, _ in reports] == [0, 96, 96 + 12]
    assert list(copies) == list(aliased)
    for name, value in aliased.items():
        assert torch.equal(copies[name].to_dense(), value.to_dense()), name
    copies["a"][5] = 100.0
    assert copies["b"][0, 1] == 100.0
    assert aliased["a"][5] == 5.0
    plain = state.clone(aliased)
    same = aliased["a"] is aliased["again"]
    assert (copies["a"] is copies["again"]) == (plain["a"] is plain["again"]) == same


def test_a_large_state_is_unflattened_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_PART", 50_000)

    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(100, 100), torch.nn.Linear(100, 100)
            self.third = self.first
            self.register_buffer("constant", torch.ones(100))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.third(self.second(self.first(x))) + self.constant

    model, x = Shared(), torch.ones(1, 100)
    program = export(model, (x,), strict=False)
    reports: Reports = []
    made = unflatten(program, progress=lambda *report: reports.append(report))
    assert len(reports) > 2
    assert torch.equal(made(x), model(x))
    plain = unflatten(program)
    assert list(made.state_dict()) == list(plain.state_dict())
    assert [type(p) for p in made.parameters()] == [type(p) for p in plain.parameters()]
    assert made.first.weight is made.third.weight
    assert made.first.weight.data_ptr() != model.first.weight.data_ptr()


def test_a_program_that_is_traced_as_a_whole_is_done_at_the_end() -> None:
    from fxpress.decompose import report, run_decompositions

    class Writes(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    program = export(Writes(), (torch.ones(1),), strict=False)
    reports: Reports = []
    run_decompositions(program, progress=lambda *each: reports.append(each))
    assert report().reason
    nodes = len(program.graph.nodes)
    assert [each[:2] for each in reports] == [(0, nodes), (nodes, nodes)]


def test_functions_without_progress_say_so() -> None:
    without = {each.name for each in OPERATIONS if each.doing is None}
    assert without == {
        "split_module",
        "split_module.split_module_simple",
        "unflatten.UnflattenedModule",
        "export.module",
        "pipeline.to_pipe",
        "serialize.deserialize",
    }

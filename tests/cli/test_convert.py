"""`fxpress convert`: the program stays, the form of its file changes."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

import fxpress
import fxpress.archive
from fxpress._tools.cli import app
from fxpress._tools.inspect.summary import summarize
from tests.support.called import Called
from tests.support.found import find_faults


def values_of(program: ExportedProgram) -> dict[str, Any]:
    return {**program.state_dict, **program.constants}


def assert_same_values(first: ExportedProgram, second: ExportedProgram) -> None:
    one, other = values_of(first), values_of(second)
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("weights", ["inline", "safetensors"])
def test_the_program_stays(
    weights: str, path: Path, program: ExportedProgram, tmp_path: Path
) -> None:
    target = tmp_path / "new.pt2"
    assert app.run(["convert", str(path), str(target), "--weights", weights]) == 0
    loaded = fxpress.load(target)
    assert fxpress.graph_hash(loaded) == fxpress.graph_hash(program)
    assert_same_values(loaded, program)
    assert find_faults(target) == []
    assert (len(list(tmp_path.glob("*.safetensors"))) == 1) is (weights == "safetensors")


def test_without_weights(path: Path, program: ExportedProgram, tmp_path: Path) -> None:
    target = tmp_path / "new.pt2"
    assert app.run(["convert", str(path), str(target), "--weights", "none"]) == 0
    assert target.stat().st_size < path.stat().st_size
    loaded = fxpress.load(target, load_weights=False)
    assert fxpress.graph_hash(loaded) == fxpress.graph_hash(program)


def test_in_place(path: Path, program: ExportedProgram, tmp_path: Path) -> None:
    target = tmp_path / "same.pt2"
    target.write_bytes(path.read_bytes())
    assert app.run(["convert", str(target), str(target)]) == 0
    assert_same_values(fxpress.load(target), program)


class Tied(torch.nn.Module):
    """Two parameters that share a tensor, a buffer that is written, and a buffer of integers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("steps", torch.ones((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return self.two(self.one(x)) * self.steps + self.seen


@pytest.mark.parametrize("decomposed", [False, True])
def test_weights_of_another_type(decomposed: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Tied(), torch.randn(2, 4)
    program = torch.export.export(model, (x,))
    if decomposed:
        program = program.run_decompositions({})
    source, target = tmp_path / "source.pt2", tmp_path / "target.pt2"
    torch.export.save(program, source)
    assert app.run(["convert", str(source), str(target), "--dtype", "bfloat16"]) == 0
    (found,) = summarize(target).programs
    assert {weight.name: weight.tensor.dtype for weight in found.weights} == {
        "one.weight": "bfloat16",
        "one.bias": "bfloat16",
        "two.weight": "bfloat16",
        "two.bias": "bfloat16",
        "seen": "float32",  # the program writes to it
        "steps": "int64",
    }
    loaded = torch.export.load(target)
    state = loaded.state_dict
    assert state["one.weight"].data_ptr() == state["two.weight"].data_ptr()
    rounded = Tied()
    rounded.load_state_dict(
        {n: t.bfloat16().float() if n != "seen" else t for n, t in model.state_dict().items()}
    )
    result = loaded.module()(x)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, rounded(x), rtol=0, atol=0)


class Shared(torch.nn.Module):
    """A buffer is part of another one, which the program writes; a parameter is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.zeros(4))
        self.register_buffer("part", self.whole[:2])
        self.returned = torch.nn.Parameter(torch.ones(2))
        self.free = torch.nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.whole.add_(1)
        return x + self.part * self.free, self.returned


def test_weights_that_keep_their_type(tmp_path: Path) -> None:
    source, target = tmp_path / "source.pt2", tmp_path / "target.pt2"
    torch.export.save(torch.export.export(Shared(), (torch.ones(2),)), source)
    assert app.run(["convert", str(source), str(target), "--dtype", "float16"]) == 0
    (found,) = summarize(target).programs
    assert {weight.name: weight.tensor.dtype for weight in found.weights} == {
        "whole": "float32",
        "part": "float32",
        "returned": "float32",
        "free": "float16",
    }
    before, after = (fxpress.load(path).module() for path in (source, target))
    for _ in range(2):
        x = torch.ones(2)
        assert torch.equal(after(x)[0], before(x)[0])


def test_nothing_else_changes(tmp_path: Path) -> None:
    class Guarded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return self.linear(x).sum(0) + self.linear(y).sum(0)

    batch = torch.export.Dim("batch", min=3, max=64)
    shapes = ({0: batch}, {0: 2 * batch})
    inputs = (torch.ones(5, 4), torch.ones(10, 4))
    program = torch.export.export(Guarded(), inputs, dynamic_shapes=shapes)
    source, target = tmp_path / "source.pt2", tmp_path / "target.pt2"
    fxpress.save(program, str(source), extra_files={"notes.txt": "hello"})
    assert app.run(["convert", str(source), str(target), "--dtype", "bfloat16"]) == 0
    extra = {"notes.txt": ""}
    was, now = fxpress.load(source), fxpress.load(target, extra_files=extra)
    assert extra == {"notes.txt": "hello"}
    assert was._guards_code == now._guards_code
    assert repr(was.range_constraints) == repr(now.range_constraints)
    assert repr(was.graph_signature) == repr(now.graph_signature)
    assert [c.fqn for c in was.module_call_graph] == [c.fqn for c in now.module_call_graph]
    tree = torch.export.unflatten(torch.export.load(target))
    assert torch.equal(tree(*inputs), now.module()(*inputs))


class Constant(torch.nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), value))

    def forward(self) -> torch.Tensor:
        return self.weight * 2


def test_programs_without_inputs(tmp_path: Path) -> None:
    source, target = str(tmp_path / "source.pt2"), str(tmp_path / "target.pt2")
    torch.export.save(torch.export.export(Constant(1.0), ()), source)
    assert app.run(["convert", source, target, "--dtype", "float16"]) == 0
    assert torch.equal(fxpress.load(target).module()(), torch.full((2,), 2.0))


def test_values_that_the_type_cannot_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = str(tmp_path / "source.pt2"), tmp_path / "target.pt2"
    torch.export.save(torch.export.export(Constant(1e6), ()), source)
    for dtype, said in (("float16", "cannot hold"), ("float4_e2m1fn_x2", "cannot be cast")):
        assert app.run(["convert", source, str(target), "--dtype", dtype]) == 2
        assert said in capsys.readouterr().err
    assert not target.exists()


def test_files_of_several_programs(
    program: ExportedProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "two.pt2"
    fxpress.archive.package_pt2(path, exported_programs={"model": program, "other": program})
    before = path.read_bytes()
    assert app.run(["convert", str(path), str(path)]) == 2
    assert "'other'" in capsys.readouterr().err
    assert path.read_bytes() == before


def test_example_inputs(path: Path, tmp_path: Path) -> None:
    inputs, target = tmp_path / "inputs.pt", tmp_path / "new.pt2"
    args, kwargs = (torch.full((5, 4), 2.0), True), {"bias": torch.zeros(4)}
    torch.save((args, kwargs), inputs)
    given = ["convert", str(path), str(target), "--example-inputs", str(inputs)]
    assert app.run(given) == 0
    loaded, loaded_kwargs = fxpress.load(target).example_inputs
    assert torch.equal(loaded[0], args[0])
    assert loaded_kwargs["bias"].shape == (4,)


def test_older_files(path: Path, program: ExportedProgram, tmp_path: Path) -> None:
    """Before torch 2.9 a file was a zip of four records."""
    older, target = tmp_path / "older.pt2", tmp_path / "new.pt2"
    artifact = torch._export.serde.serialize.serialize(program)
    with zipfile.ZipFile(older, "w") as archive:
        archive.writestr("version", "8.9")
        archive.writestr("serialized_exported_program.json", artifact.exported_program)
        archive.writestr("serialized_state_dict.pt", artifact.state_dict)
        archive.writestr("serialized_constants.pt", artifact.constants)
        archive.writestr("serialized_example_inputs.pt", artifact.example_inputs)
    assert app.run(["convert", str(older), str(target)]) == 0
    assert summarize(target).kind == "pt2 archive"
    assert_same_values(fxpress.load(target), program)


def test_what_is_refused(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new.pt2"
    target.write_bytes(b"before")
    text = tmp_path / "text"
    text.write_text("no tensors")
    other = tmp_path / "other.pt"
    torch.save(((torch.ones(2),), {}), other)
    outside = tmp_path / "outside.pt"
    view = torch._utils._rebuild_tensor, torch.ones(2).storage(), 1, (2,), (1,)
    torch.save(((Called(*view),), {}), outside)
    for arguments, said in (
        ([str(text), str(target)], "not a zip archive"),
        ([str(path), str(target), "--dtype", "int8"], "expected a floating-point dtype"),
        ([str(path), str(target), "--dtype", "nothing"], "expected a floating-point dtype"),
        ([str(path), str(target), "--example-inputs", str(text)], "the file of inputs is damaged"),
        ([str(path), str(target), "--example-inputs", str(other)], "structure"),
        ([str(path), str(target), "--example-inputs", str(outside)], "exceeds its storage"),
        ([str(path), str(target), "--weights", "somewhere"], "somewhere"),
        ([str(path), str(tmp_path / "no" / "new.pt2")], "No such file"),
    ):
        assert app.run(["convert", *arguments]) == 2, arguments
        assert said in capsys.readouterr().err, arguments
    assert target.read_bytes() == b"before"


def test_what_it_wrote_is_printed(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.pt2"
    assert app.run(["convert", str(path), str(target), "--weights", "safetensors"]) == 0
    names = [line.rpartition(": ")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == [str(target), *map(str, tmp_path.glob("*.safetensors"))]
    assert len(names) == 2


@pytest.mark.parametrize(
    "command", ["convert {0} -", "split {0} --stages 2 -o -", "view {0} --json -"]
)
def test_the_standard_output_is_no_target(
    command: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert app.run(command.format(path).split()) == 2
    assert not list(tmp_path.iterdir())

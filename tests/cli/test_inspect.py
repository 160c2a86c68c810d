"""`fxpress inspect` shows the same facts of a file as torch shows of the program in it."""

from __future__ import annotations

import contextlib
import functools
import json
import operator
import random
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._export.serde.schema import ScalarType
from torch.export import ExportedProgram

import fxpress
from fxpress._files.format.package import InspectionError
from fxpress._files.format.tensors import expression
from fxpress._files.format.torch_facts import BY_NUMBER
from fxpress._tools.cli import app
from fxpress._tools.inspect.modules import lines_of
from fxpress._tools.inspect.program import Program
from fxpress._tools.inspect.summary import Summary, summarize
from tests.fuzz.hostile import hostile_files
from tests.support.command_line import assert_without_torch, places_in, run


def calls_of(module: torch.fx.GraphModule) -> Counter[str]:
    """Count the operators of a graph and of its bodies, by the names that files have for them.

    Files have no `getitem`: an operator's node names its results there.
    """
    counts: Counter[str] = Counter()
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if isinstance(node.target, torch._ops.OpOverload):
            counts[f"torch.ops.{node.target}"] += 1
        elif isinstance(node.target, torch._ops.HigherOrderOperator):
            counts[f"torch.ops.higher_order.{node.target.name()}"] += 1
        else:
            counts[f"{node.target.__module__}.{node.target.__name__}"] += 1
    for child in module.children():
        if isinstance(child, torch.fx.GraphModule):
            counts += calls_of(child)
    return counts


def only(summary: Summary) -> Program:
    (found,) = summary.programs
    return found


def test_it_says_what_torch_says(program: ExportedProgram, path: Path) -> None:
    summary = summarize(path)
    found = only(summary)
    assert summary.kind == "pt2 archive"
    assert summary.bytes == path.stat().st_size
    with zipfile.ZipFile(path) as archive:
        assert summary.records == len(archive.namelist())
    assert summary.extra_files == {"notes.txt": 5}
    assert found.torch_version == torch.__version__
    assert found.dialect == [verifier.dialect for verifier in program.verifiers]
    assert found.operators == calls_of(program.graph_module)
    ranges = {
        str(symbol): (int(r.lower), int(r.upper)) for symbol, r in program.range_constraints.items()
    }
    assert found.symbols == ranges
    user_inputs = program.graph_signature.user_inputs
    assert [value.name for value in found.inputs if value.kind == "user_input"] == [
        name for name in user_inputs if isinstance(name, str)
    ]
    assert [(value.target, value.kind) for value in found.outputs if value.target] == [
        (target, "buffer_mutation") for target in program.graph_signature.buffers_to_mutate.values()
    ]
    assert found.outputs[-2].type == f"float64[{next(iter(ranges))}, 4]"


def test_weights_and_modules(program: ExportedProgram, path: Path) -> None:
    found = only(summarize(path))
    state = program.state_dict
    assert {w.name: (w.tensor.dtype, w.tensor.shape, w.tensor.bytes) for w in found.weights} == {
        name: (str(t.dtype).removeprefix("torch."), list(t.shape), t.nbytes)
        for name, t in state.items()
    }
    assert {w.name for w in found.weights if w.kind == "parameter"} == {
        name for name, t in state.items() if isinstance(t, torch.nn.Parameter)
    }
    modules = {module.path: module for _, module in lines_of(found.root)}
    for module_path, module in modules.items():
        prefix = f"{module_path}." if module_path else ""
        inside = [t for name, t in state.items() if name.startswith(prefix)]
        assert module.parameters == sum(
            t.numel() for t in inside if isinstance(t, torch.nn.Parameter)
        ), module_path
        assert module.bytes == sum(t.nbytes for t in inside), module_path
    assert set(modules) == {"", "first", "second", "first.linear", "second.linear"}
    assert modules["first.linear"].class_name == "torch.nn.modules.linear.Linear"
    traced = [
        node.meta.get("nn_module_stack", {})
        for node in program.graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    ]
    below_first = [stack for stack in traced if any(p == "first" for p, _ in stack.values())]
    assert modules["first"].operators >= len(below_first) > 0


def test_older_files(program: ExportedProgram, path: Path, tmp_path: Path) -> None:
    """Before torch 2.9 a program was one record, with the same text."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("models/model.json"))
        text = archive.read(name)
    older = tmp_path / "older.pt2"
    with zipfile.ZipFile(older, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("serialized_exported_program.json", text)
        archive.writestr("serialized_state_dict.pt", b"")
    was, found = only(summarize(path)), only(summarize(older))
    assert found.operators == was.operators
    assert {w.name: w.tensor for w in found.weights} == {w.name: w.tensor for w in was.weights}
    assert summarize(older).runs == {"serialized_state_dict.pt": "pickle"}


def test_what_may_run(path: Path) -> None:
    assert set(summarize(path).runs) == {"data/sample_inputs/model.pt"}


def test_dtypes_are_torchs() -> None:
    names = {"byte": "uint8", "char": "int8", "short": "int16", "int": "int32", "long": "int64"}
    names |= {
        "half": "float16",
        "float": "float32",
        "double": "float64",
        "complexhalf": "complex32",
    }
    names |= {"complexfloat": "complex64", "complexdouble": "complex128"}
    for member in ScalarType:
        if member is not ScalarType.UNKNOWN:
            text = member.name.lower()
            name, size, *_ = BY_NUMBER[int(member)]
            dtype = getattr(torch, name)
            assert size == dtype.itemsize
            assert names.get(text, text) == name.replace("float8_", "float8")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Symbol('s0', positive=True, integer=True)", "s0"),
        ("Add(Mul(Integer(2), Symbol('s0')), Integer(-1))", "(2*s0 + -1)"),
        ("Pow(Symbol('a'), Integer(2))", "a**2"),
        ("FloorDiv(Symbol('a'), Integer(2))", "FloorDiv(a, 2)"),
        ("__import__('os').system('x')", "__import__('os').system('x')"),
        ("(" * 400, "(" * 400),
        ("", ""),
    ],
)
def test_expressions(text: str, wanted: str) -> None:
    assert expression(text) == wanted


def test_hostile_files_are_refused_or_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in hostile_files().values():
        path.write_bytes(data)
        with contextlib.suppress(InspectionError):
            json.dumps(summarize(path).plain())


@pytest.mark.parametrize("end", ["models/model.json", "weights_config.json"])
def test_damaged_fields_are_named(
    end: str, path: Path, edit: Callable[[dict[str, Any]], Path]
) -> None:
    """If a field is changed, `inspect` shows the file, or its error names the record."""

    def damage(text: bytes, place: tuple[Any, ...], value: Any) -> bytes:
        held = document = json.loads(text)
        for key in place[:-1]:
            held = held[key]
        held[place[-1]] = value
        return json.dumps(document).encode()

    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(end))
        places = [place for place in places_in(json.loads(archive.read(name))) if place]
    refused = 0
    for number, place in enumerate(random.Random(0).sample(places, min(len(places), 80))):
        value = [None, -1, "\x1b[31m", [], {"a": [1]}][number % 5]
        file = edit({end: functools.partial(damage, place=place, value=value)})
        try:
            json.dumps(summarize(file).plain())
        except InspectionError as error:
            refused += 1
            told = str(error)
            assert end in told, told
    assert refused


def test_torch_is_not_imported(path: Path) -> None:
    for further in ([], ["--json"], ["--node", "linear"]):
        assert_without_torch("inspect", str(path), *further)


def test_as_a_process(path: Path, tmp_path: Path) -> None:
    shown = run("inspect", str(path))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "\x1b" not in shown.stdout
    for part in ("aten.linear.default", "first Block", "buffer mutation first.seen", "notes.txt"):
        assert part in shown.stdout, part
    assert json.loads(run("inspect", str(path), "--json").stdout)["records"] > 10
    for other, said in ((tmp_path / "none", "No such file"), (Path(__file__), "not a zip archive")):
        failed = run("inspect", str(other))
        assert (failed.returncode, failed.stdout) == (2, "")
        assert failed.stderr.startswith(f"fxpress: {other}: ")
        assert said in failed.stderr
        assert failed.stderr.count("\n") == 1
    assert "Traceback" in run("--debug", "inspect", str(Path(__file__))).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--weights"], "second.linear.bias"),
        (["--ops"], "aten.cos.default"),
        (["--tree", "0"], "(root) Model"),
        (["--node", "linear_1"], "argument weight"),
    ],
)
def test_parts(
    path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["inspect", str(path), *arguments]) == 0
    assert said in capsys.readouterr().out


def test_long_tables_are_cut(
    edit: Callable[[dict[str, Callable[[bytes], bytes]]], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """rich needs 0.4 ms for a row, and entries of a small file may share a record."""

    def repeat(text: bytes) -> bytes:
        config = json.loads(text)["config"]
        entry = config["first.linear.weight"]
        return json.dumps({"config": config | {f"w{i}": entry for i in range(9_000)}}).encode()

    file = edit({"weights_config.json": repeat})
    assert app.run(["inspect", str(file), "--weights"]) == 0
    shown = capsys.readouterr().out
    assert "(--json shows all)" in shown.splitlines()[-1]
    assert 1_000 < shown.count("\n") < 3_000
    assert app.run(["inspect", str(file), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["programs"][0]["weights"]) > 9_000


def test_status(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["inspect", str(path), "--node", "nowhere"]) == 1
    assert app.run(["inspect", str(path), "--tree", "much"]) == 2
    assert app.run(["inspekt"]) == 2
    assert "No such command" in capsys.readouterr().err


def test_names_do_not_reach_the_terminal_as_commands(
    edit: Callable[[dict[str, bytes]], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    def change(text: bytes) -> bytes:
        return text.replace(b"first.linear", rb"[red]\u001b]0;x\u0007")

    file = edit({".json": change})
    assert app.run(["inspect", str(file), "--weights", "--tree", "9"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "[red]\\x1b]0;x\\x07" in out


def test_saved_by_fxpress(program: ExportedProgram, path: Path, tmp_path: Path) -> None:
    target = tmp_path / "ours.pt2"
    fxpress.save(program, target)
    was, found = only(summarize(path)), only(summarize(target))
    assert found.operators == was.operators
    assert found.weights == was.weights

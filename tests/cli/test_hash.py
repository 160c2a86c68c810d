"""`fxpress hash`: the hashes of `fxpress.graph_hash`, from the file alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

import fxpress
from fxpress._files.format.package import InspectionError
from fxpress._files.format.torch_facts import operators, schema
from fxpress._files.format.views import View
from fxpress._files.serde.damage import UnknownNameError
from fxpress._files.serde.hashing import traits_of
from fxpress._files.serde.schema import SCHEMA, TYPES, describe
from fxpress._files.serde.targets import find_target
from fxpress._tools.cli import app
from fxpress._tools.inspect.hashes import UnknownOperatorError, hash_programs
from fxpress.archive import package_pt2
from tests.support.command_line import assert_without_torch
from tests.support.found import assert_hashed_as_loaded


def test_as_of_the_loaded_program(program: ExportedProgram, tmp_path: Path) -> None:
    torch.export.save(program, tmp_path / "file.pt2")
    assert_hashed_as_loaded(tmp_path / "file.pt2")


def tensors() -> Iterator[torch.Tensor]:
    whole = torch.arange(120).reshape(6, 5, 4)
    for dtype in (torch.float32, torch.int64, torch.uint8, torch.bfloat16, torch.complex128):
        x = whole.to(dtype)
        yield from (x, x.transpose(0, 2), x[1:4, ::2], x[0, 0, 0], x[:, 1:1], x[..., 1])
        yield from (x.permute(1, 0, 2)[2:], x[:, :1].expand(6, 3, 4), x.diagonal())


def test_views_are_read_in_order() -> None:
    for tensor in tensors():
        view = View(tensor.element_size(), tensor.shape, tensor.stride(), tensor.storage_offset())
        stored = bytes(tensor.untyped_storage().tolist())
        expected = bytes(tensor.clone(memory_format=torch.contiguous_format).untyped_storage())
        assert b"".join(view.parts(stored)) == expected, (tensor.shape, tensor.stride())
        if view.bytes:
            with pytest.raises(ValueError, match="expected a storage of"):
                list(view.parts(stored[: view.bytes - 1]))


def test_views_that_cannot_be() -> None:
    for sizes, strides, start in (((2,), (1, 1), 0), ((-1,), (1,), 0), ((2,), (1,), -1)):
        with pytest.raises(ValueError, match=r"sizes|negative"):
            View(4, sizes, strides, start)


class Constants(torch.nn.Module):
    """A tensor constant and a buffer that is not saved with the state."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.plain = torch.full((3, 2), value).t()
        self.register_buffer("kept", torch.ones(2, 3), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.plain + self.kept


def test_values_of_constants(tmp_path: Path) -> None:
    hashes = []
    for value in (1.0, 2.0):
        program = torch.export.export(Constants(value), (torch.ones(2, 3),))
        torch.export.save(program, tmp_path / "file.pt2")
        assert_hashed_as_loaded(tmp_path / "file.pt2")
        hashes.append(hash_programs(tmp_path / "file.pt2"))
    assert hashes[0] != hashes[1]


def test_several_programs(program: ExportedProgram, tmp_path: Path) -> None:
    path = tmp_path / "two.pt2"
    torch.export.pt2_archive._package.package_pt2(
        path, exported_programs={"one": program, "two": program}
    )
    (one, first), (two, second) = hash_programs(path)
    assert {one, two} == {"one", "two"}
    assert first == second == fxpress.graph_hash(program)


def test_what_cannot_be_hashed(
    edit: Callable[[dict[str, Any]], Path], path: Path, tmp_path: Path
) -> None:
    foreign = edit({"models/model.json": lambda text: text.replace(b"aten.mul", b"other.mul")})
    with pytest.raises(UnknownOperatorError, match=r"other\.mul"):
        hash_programs(foreign)
    damaged = edit({"models/model.json": lambda text: text.replace(b'"nodes"', b'"knots"')})
    with pytest.raises(InspectionError, match="nodes"):
        hash_programs(damaged)
    older = tmp_path / "older.pt2"
    with zipfile.ZipFile(path) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("models/model.json"))
        text = archive.read(name)
    with zipfile.ZipFile(older, "w") as archive:
        archive.writestr("serialized_exported_program.json", text)
    assert hash_programs(older) == hash_programs(path)
    with pytest.raises(InspectionError, match="pickle"):
        hash_programs(older, include_state=True)


def constant_of(sizes: list[int], strides: list[int], dtype: int = 7) -> Callable[[bytes], bytes]:
    """Return an edit that replaces the description of the constants."""

    def edit(text: bytes) -> bytes:
        document = json.loads(text)
        for entry in document["config"].values():
            meta = entry["tensor_meta"]
            meta["sizes"] = [{"as_int": each} for each in sizes]
            meta["strides"] = [{"as_int": each} for each in strides]
            meta["dtype"] = dtype
        return json.dumps(document).encode()

    return edit


@pytest.mark.parametrize(
    ("sizes", "strides", "dtype"),
    [
        ([10**11], [0], 7),
        ([10**6, 10**6], [0, 0], 7),
        ([1 << 62, 1 << 62], [0, 0], 7),
        ([2, 3], [1 << 40, 1], 7),
        ([2, 3], [-3, 1], 7),
        ([2, 3], [3], 7),
        ([2, 3], [3, 1], 0),
        ([2, 3], [3, 1], 99),
    ],
)
def test_constants_that_cannot_be(
    sizes: list[int], strides: list[int], dtype: int, tmp_path: Path
) -> None:
    path, edited = tmp_path / "file.pt2", tmp_path / "edited.pt2"
    torch.export.save(torch.export.export(Constants(1.0), (torch.ones(2, 3),)), path)
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(edited, "w") as target:
        for name in archive.namelist():
            text = archive.read(name)
            if name.endswith("constants_config.json"):
                text = constant_of(sizes, strides, dtype)(text)
            target.writestr(name, text)
    start = time.process_time()
    with pytest.raises(InspectionError):
        hash_programs(edited, include_state=True)
    assert time.process_time() - start < 5  # seconds


def test_names_that_are_no_text(edit: Callable[[dict[str, Any]], Path]) -> None:
    for old in (b"aten.mul", b'"scale"'):
        new = old.replace(b"mul", rb"\ud800").replace(b"scale", rb"\ud800")
        file = edit({".json": lambda text, old=old, new=new: text.replace(old, new)})
        with pytest.raises(InspectionError):
            hash_programs(file, include_state=True)


def test_as_a_command(
    path: Path, program: ExportedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_without_torch("hash", str(path), "--state")
    assert app.run(["hash", str(path)]) == 0
    assert capsys.readouterr().out == f"{fxpress.graph_hash(program)}  {path}\n"
    assert app.run(["hash", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {str(path): {"model": fxpress.graph_hash(program)}}
    assert app.run(["hash", str(Path(__file__))]) == 2


def test_several_files(
    path: Path, program: ExportedProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Like sha256sum, `hash` prints a line for each file, and continues after an error."""
    again, both = tmp_path / "again.pt2", tmp_path / "both.pt2"
    shutil.copy(path, again)
    package_pt2(both, exported_programs={"a": program, "b": program})
    text = fxpress.graph_hash(program)
    assert app.run(["hash", str(path), "nowhere.pt2", str(again), str(both)]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"{text}  {name}" for name in (path, again, f"{both}: a", f"{both}: b")
    ]
    assert err == "fxpress: nowhere.pt2: No such file or directory\n"
    assert app.run(["hash", str(path), "nowhere.pt2", str(both), "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert shown == {str(path): {"model": text}, str(both): {"a": text, "b": text}}
    assert app.run(["hash"]) == 2


def test_the_schema_is_torchs() -> None:
    """Facts that are tables without torch hold for the installed torch."""
    known = set(schema().type_names())
    assert {describe(cls)[0] for cls in TYPES.values()} <= known
    if set(SCHEMA.type_names()) == known:
        assert sorted(schema().rules()) == sorted(SCHEMA.rules())


def test_the_operators_are_torchs() -> None:
    checked = 0
    for text, traits in operators().items():
        try:
            target = find_target(text)
        except UnknownNameError:
            continue  # of a later torch
        checked += 1
        assert list(traits_of(target)) == traits, text
    assert checked > 3000


def test_errors_where_torch_is_not_imported() -> None:
    """Native code has no SerializeError and no LimitError then."""
    script = """
import sys
from fxpress import _native
from fxpress._files.format.torch_facts import schema
symbolic = {"as_expr": {"expr_str": "s0", "hint": None}}
meta = {"dtype": 7, "sizes": [symbolic], "requires_grad": False, "strides": [{"as_int": 1}],
        "device": {"type": "cpu", "index": None}, "storage_offset": {"as_int": 0}, "layout": 7}
entry = {"path_name": "p", "is_param": True, "use_pickle": False, "tensor_meta": meta}
import json
import shutil
import subprocess
import sys
import time
config = json.dumps({"config": {"w": entry}}).encode()
read = schema().read
for call in (
    lambda: read(b"[]", "PayloadConfig"),
    lambda: read(config, "PayloadConfig", _native.Budget(10, 500)),
    lambda: read(config, "PayloadConfig", _native.Budget(1 << 20, 2)),
    lambda: read(config, "PayloadConfig").payloads(),
    lambda: read(config.replace(b"cpu", b"c pu"), "PayloadConfig"),
):
    try:
        call()
    except ValueError as error:
        assert type(error) is ValueError and str(error)
    else:
        raise AssertionError("nothing was raised")
assert "torch" not in sys.modules
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

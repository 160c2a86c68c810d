"""`fxpress verify --load` reports a fault of a file exactly where `fxpress.load` refuses it.

Without `--load` it reports what the bytes show, and no fault of a file that loads.
"""

from __future__ import annotations

import io
import json
import logging
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import export

import fxpress
from fxpress._tools.cli import app
from fxpress._tools.inspect.verification import check_file
from tests.archive import test_damage as damage
from tests.archive.conftest import seeds_registered as seeds_registered
from tests.archive.test_damage import CONFIG, SAMPLES, WEIGHT, with_config
from tests.cli.test_verify import changed
from tests.fuzz.hostile import CASES, hostile_files
from tests.support.archived import records_of, rewritten, saved_by_us
from tests.support.found import find_faults

MODEL = "archive/models/model.json"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def refusal(path: Path) -> str | None:
    """Return the error of a load; None if it succeeds."""
    try:
        fxpress.load(path)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def disagreement(path: Path, capsys: pytest.CaptureFixture[str]) -> str | None:
    """Return how a load and `verify --load` differ; None: they agree.

    They may differ in the limit of seconds: either can reach it when the processor is slow.
    """
    status = app.run(["verify", "--load", "--json", str(path)])
    faults = [each for each in json.loads(capsys.readouterr().out) if not each["is_note"]]
    assert status == (1 if faults else 0)
    refused = refusal(path)
    if (refused is None) != (not faults) and "Limits(seconds=" in f"{refused} {faults}":
        return None
    if refused is None and faults:
        return f"it loads, but {faults}"
    if refused is not None and not faults:
        return f"no fault was found, but {refused}"
    return None


@pytest.mark.slow("604 files")
@pytest.mark.usefixtures("seeds_registered")
@pytest.mark.filterwarnings("ignore")
def test_hostile_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, wrong = tmp_path / "file.pt2", {}
    for name, data in hostile_files().items():
        path.write_bytes(data)
        said = disagreement(path, capsys)
        if said is not None:
            wrong[name] = said
    assert not wrong


def cases_of(test: Any) -> list[Any]:
    """Return the values of a test's own parametrization."""
    (mark,) = (mark for mark in test.pytestmark if mark.name == "parametrize")
    return list(mark.args[1])


def enlarge(meta: Any) -> None:
    sizes, strides = [{"as_int": 2**30}, {"as_int": 3}], [{"as_int": 3}, {"as_int": 1}]
    meta["tensor_meta"].update(sizes=sizes, strides=strides)


def damaged_files(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the tests of damage for loads."""
    yield "sound", data
    for size in range(0, len(data), 997):
        yield f"cut at {size}", data[:size]
    for info in zipfile.ZipFile(io.BytesIO(data)).infolist():
        # A load compares the checksums of what it reads, `verify` all of them.
        if info.file_size and not info.filename.startswith(("archive/.data/", "archive/byteorder")):
            content = records_of(data)[info.filename]
            flipped = bytearray(data)
            flipped[data.index(content, info.header_offset) + len(content) // 2] ^= 0x10
            yield f"flipped {info.filename}", bytes(flipped)
    for name in cases_of(damage.test_missing_records_are_named):
        yield f"without {name}", rewritten(data, {name: None})
    for content in (b"", b"{", b"[]", b"{}", b'{"config": 1}', b"\xff", b"null"):
        yield f"config {content!r}", rewritten(data, {CONFIG: content})
        yield f"model {content!r}", rewritten(data, {MODEL: content})
    for name, case in CASES.items():
        # Without torch, `verify` does not know which devices there are.
        if name.startswith("numbers-") and case.message and name != "numbers-weight-device":
            yield name, case.make()
    yield "zeros", rewritten(data, {WEIGHT: b""})
    yield "too many zeros", rewritten(with_config(data, enlarge), {WEIGHT: b""})
    yield "part of an item", rewritten(data, {WEIGHT: b"\0" * 47})
    for name in cases_of(damage.test_names_that_lead_elsewhere):
        yield f"name {name}", rewritten(data, {name: b"x"})
    for version in (b"1", b"x", b""):
        yield f"version {version!r}", rewritten(data, {"archive/archive_version": version})
    yield "no format", rewritten(data, {"archive/archive_format": None})
    yield "no text", rewritten(data, {"archive/extra/notes": b"\xff"})
    yield "no examples", rewritten(data, {SAMPLES: b""})
    yield (
        "operator",
        rewritten(
            data, {MODEL: records_of(data)[MODEL].replace(b"aten.add.Tensor", b"aten.add.Tensors")}
        ),
    )


def rename(document: Any) -> None:
    document["graph_module"]["signature"]["input_specs"][0]["parameter"]["arg"]["name"] = "p_other"


def rename_result(document: Any) -> None:
    output = document["graph_module"]["signature"]["output_specs"][0]
    output["user_output"]["arg"]["as_tensor"]["name"] = "other"


def drop_a_spec(document: Any) -> None:
    document["graph_module"]["signature"]["input_specs"].pop()


def other_version(document: Any) -> None:
    document["schema_version"]["major"] = 9


def write_a_parameter(document: Any) -> None:
    graph, signature = (document["graph_module"][each] for each in ("graph", "signature"))
    graph["outputs"].insert(0, graph["outputs"][0])
    written = {"arg": {"name": graph["outputs"][0]["as_tensor"]["name"]}, "buffer_name": "none"}
    signature["output_specs"].insert(0, {"buffer_mutation": written})


def damage_history(text: str) -> Any:
    def change(document: Any) -> None:
        document["graph_module"]["graph"]["nodes"][0]["metadata"]["from_node"] = text

    change.__name__ = f"damage_history({text[:20]!r})"
    return change


HISTORIES = (
    *("[", "null, 1", "7", "", "null", '["a"]', '[{"name": 1}]', '[{"name": "a\\nb"}]'),
    *("[" * 600, '[{"from_node": ' * 600, '[{"other": []}]', '"\\ud800"', "[{}]"),
)
CHANGES = (
    *(rename, rename_result, drop_a_spec, other_version, write_a_parameter),
    *map(damage_history, HISTORIES),
)


@pytest.mark.usefixtures("seeds_registered")
def test_damaged_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = saved_by_us(export(damage.Model(), (damage.X,)))
    path = tmp_path / "file.pt2"
    files = dict(damaged_files(data))
    for change in CHANGES:
        files[change.__name__] = rewritten(data, {MODEL: changed(change)(records_of(data)[MODEL])})
    wrong = {}
    for name, content in files.items():
        path.write_bytes(content)
        said = disagreement(path, capsys)
        if said is not None:
            wrong[name] = said
        assert check_file(path) or refusal(path) is None, name
    assert len(files) > 70
    assert not wrong


def swap_names(text: bytes) -> bytes:
    return text.replace(b"linear.weight", b"linear.wEight")


def test_weights_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each part of the safetensors file in turn is damaged, and the record that names it."""
    path = tmp_path / "model.pt2"
    fxpress.save(export(damage.Model(), (damage.X,)), path, weights="safetensors")
    (beside,) = tmp_path.glob("*.safetensors")
    sound = beside.read_bytes()
    length = int.from_bytes(sound[:8], "little")
    header, values = sound[8 : 8 + length], sound[8 + length :]
    others = {
        "nothing": b"",
        "cut": sound[:-1],
        "cut in the header": sound[:20],
        "longer": sound + b"\0",
        "length": b"\xff" * 8 + sound[8:],
        "no json": sound[:8] + b"x" * length + values,
        "deep": sound[:8] + (b"[" * length) + values,
        "names": sound[:8] + swap_names(header) + values,
        "types": sound[:8] + header.replace(b'"F32"', b'"I32"') + values,
        "unknown type": sound[:8] + header.replace(b'"F32"', b'"F33"') + values,
        "sizes": sound[:8] + header.replace(b"[4,3]", b"[3,4]") + values,
        "number": sound[:8]
        + header.replace(b'fxpress_save":"', b'fxpress_save":"x')[:length]
        + values,
    }
    assert disagreement(path, capsys) is None
    wrong = {}
    for name, content in others.items():
        beside.write_bytes(content)
        said = disagreement(path, capsys)
        if said is not None:
            wrong[name] = said
        assert refusal(path) is not None, name
        assert find_faults(path), name
    beside.unlink()
    wrong["missing"] = disagreement(path, capsys) or ""
    assert not any(wrong.values())


def test_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file whose load has requirements has a note, and no fault."""
    path = tmp_path / "model.pt2"
    fxpress.save(export(damage.Model(), (damage.X,)), path, weights="none")
    assert app.run(["verify", str(path)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert "note: " in shown[0]
    assert "load_weights=False" in shown[0]
    assert shown[1] == f"{path}: no fault was found"
    assert app.run(["verify", "--load", str(path)]) == 0
    assert capsys.readouterr().out.splitlines() == shown


def test_operators_of_a_library(tmp_path: Path) -> None:
    with torch.library._scoped_library("fxpress_look", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        torch.library.register_fake("fxpress_look::twice", torch.empty_like, lib=library)

        class Twice(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.ops.fxpress_look.twice(x)

        fxpress.save(export(Twice(), (damage.X,)), tmp_path / "file.pt2")
    (note,) = check_file(tmp_path / "file.pt2")
    assert note.is_note
    assert "torch.ops.fxpress_look.twice.default" in note.text

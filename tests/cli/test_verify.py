"""`fxpress verify`: sound files have no fault, and each fault of others is named."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

import fxpress
from fxpress._files.format.torch_facts import torch_version
from fxpress._tools.cli import app
from fxpress._tools.inspect.verification import Fault, check_file
from tests.fuzz.hostile import hostile_files
from tests.support.command_line import assert_without_torch, run
from tests.support.found import find_faults

MODEL = "models/model.json"
WEIGHTS = "weights_config.json"


def test_sound_files(path: Path, program: ExportedProgram, tmp_path: Path) -> None:
    assert find_faults(path) == []
    for weights in ("inline", "none", "safetensors"):
        target = tmp_path / f"{weights}.pt2"
        fxpress.save(program, target, weights=weights)
        assert find_faults(target) == [], weights


def changed(change: Callable[[Any], None]) -> Callable[[bytes], bytes]:
    def edit(text: bytes) -> bytes:
        document = json.loads(text)
        change(document)
        return json.dumps(document).encode()

    return edit


def node_of(document: Any, target: str) -> Any:
    nodes = document["graph_module"]["graph"]["nodes"]
    return next(node for node in nodes if target in node["target"])


def forget_a_value(document: Any) -> None:
    node_of(document, "aten.mul")["inputs"][0]["arg"]["as_tensor"]["name"] = "nowhere"


def compute_twice(document: Any) -> None:
    nodes = document["graph_module"]["graph"]["nodes"]
    nodes.append(nodes[-1])


def return_nothing(document: Any) -> None:
    document["graph_module"]["graph"]["outputs"][0]["as_tensor"]["name"] = "nothing"


def write_to_nothing(document: Any) -> None:
    specs = document["graph_module"]["signature"]["output_specs"]
    next(s for s in specs if "buffer_mutation" in s)["buffer_mutation"]["buffer_name"] = "absent"


def call_another(document: Any) -> None:
    node = node_of(document, "aten.mul")
    node["target"] = node["target"].replace("mul.", "mull.")


def describe_less(document: Any) -> None:
    name = node_of(document, "aten.mul")["outputs"][0]["as_tensor"]["name"]
    del document["graph_module"]["graph"]["tensor_values"][name]


def lose_a_value_in_a_body(document: Any) -> None:
    (cond,) = [a for a in node_of(document, "cond")["inputs"] if a["arg"].get("as_graph")][:1]
    body = cond["arg"]["as_graph"]["graph"]
    body["nodes"][0]["inputs"][0]["arg"]["as_tensor"]["name"] = "outside"


def lengthen(document: Any) -> None:
    document["config"]["scale"]["tensor_meta"]["sizes"][0]["as_int"] = 1000


def move(document: Any) -> None:
    document["config"]["scale"]["path_name"] = "weight_99"


def drop(document: Any) -> None:
    del document["config"]["scale"]


@pytest.mark.parametrize(
    ("end", "change", "said"),
    [
        (MODEL, return_nothing, "graph.outputs[0] is 'nothing', but"),
        (MODEL, write_to_nothing, "the program writes 'absent', which is not a buffer"),
        (WEIGHTS, lengthen, "'scale': it needs 8000 bytes, but its record"),
        (WEIGHTS, move, "'scale': its record 'data/weights/weight_99' is missing"),
        (WEIGHTS, drop, "'scale' is missing"),
    ],
)
def test_faults(end: str, change: Any, said: str, edit: Callable[[dict[str, Any]], Path]) -> None:
    file = edit({end: changed(change)})
    faults = find_faults(file)
    assert [fault.record.endswith(end) for fault in faults] == [True] * len(faults)
    assert said in "\n".join(fault.text for fault in faults)
    with pytest.raises(fxpress.Error):
        fxpress.load(file)


def test_unknown_operators(edit: Callable[[dict[str, Any]], Path]) -> None:
    """A note with another torch than the one whose operators are known."""
    (found,) = check_file(edit({MODEL: changed(call_another)}))
    assert found.text.startswith(f"torch {torch_version()} has no 'torch.ops.aten.mull.Tensor'")
    is_known = torch.__version__.startswith(torch_version().rpartition(".")[0])
    assert found.is_note is not is_known


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (forget_a_value, "nowhere"),
        (compute_twice, ""),
        (describe_less, ""),
        (lose_a_value_in_a_body, "outside"),
    ],
)
def test_faults_that_a_load_finds(
    change: Any,
    said: str,
    edit: Callable[[dict[str, Any]], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = edit({MODEL: changed(change)})
    assert find_faults(file) == []
    assert app.run(["verify", "--load", "--json", str(file)]) == 1
    (fault,) = json.loads(capsys.readouterr().out)
    assert fault["text"].startswith("fxpress.load: ")
    assert said in fault["text"]
    with pytest.raises(fxpress.Error):
        fxpress.load(file)


def test_all_faults_are_named(edit: Callable[[dict[str, Any]], Path]) -> None:
    file = edit({MODEL: changed(return_nothing), WEIGHTS: changed(move)})
    raw = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        (notes,) = (info for info in archive.infolist() if info.filename.endswith("notes.txt"))
    start = raw.index(b"hello", notes.header_offset)
    raw[start : start + 5] = b"jello"
    file.write_bytes(bytes(raw))
    texts = [fault.text for fault in find_faults(file)]
    assert len(texts) == 3
    for said in ("checksum", "nothing", "weight_99"):
        assert any(said in text for text in texts), said


def test_tensors_without_data(tmp_path: Path) -> None:
    program = torch.export.export(
        torch.nn.Linear(4, 4, device="meta"), (torch.ones(2, 4, device="meta"),)
    )
    for save in (torch.export.save, fxpress.save):
        save(program, str(tmp_path / "file.pt2"))
        assert find_faults(tmp_path / "file.pt2") == []


@pytest.mark.parametrize(
    "end",
    ["weights_config.json", "constants_config.json", "sample_inputs/model.pt", "models/model.json"],
)
def test_missing_records(end: str, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "less.pt2"
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(file, "w") as edited:
        for name in archive.namelist():
            if not name.endswith(end):
                edited.writestr(name, archive.read(name))
    assert find_faults(file)
    with pytest.raises(fxpress.Error):
        fxpress.load(file)


def move_three(document: Any) -> None:
    for entry in list(document["config"].values())[:3]:
        entry["tensor_meta"]["storage_offset"]["as_int"] = -1


def test_a_fault_does_not_hide_others(edit: Callable[[dict[str, Any]], Path]) -> None:
    file = edit({WEIGHTS: changed(move_three), "archive_format": lambda _: b"pt3"})
    texts = [fault.text for fault in find_faults(file)]
    assert any("archive of format" in text for text in texts)
    file = edit({WEIGHTS: changed(move_three)})
    assert len(find_faults(file)) == 3


def test_what_is_refused_has_a_fault(path: Path, edit: Callable[[dict[str, Any]], Path]) -> None:
    """If a field has another type, a fault names the location where torch's schema is violated."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(MODEL))
        graph = json.loads(archive.read(name))["graph_module"]["graph"]
    keys = [(n, key) for n, node in enumerate(graph["nodes"]) for key in node]
    for number, (node, key) in enumerate(random.Random(0).sample(keys, 20)):

        def damage(document: Any, node: int = node, key: str = key, number: int = number) -> None:
            held = document["graph_module"]["graph"]["nodes"][node]
            held[key] = [{}, 7, [[1]]][number % 3]

        file = edit({MODEL: changed(damage)})
        if not find_faults(file):
            fxpress.load(file)


def test_hostile_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in hostile_files().values():
        path.write_bytes(data)
        faults = find_faults(path)
        assert all(type(fault) is Fault for fault in faults)


def test_cut_files(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    cut = tmp_path / "cut.pt2"
    for end in random.Random(1).sample(range(len(data)), 20):
        cut.write_bytes(data[:end])
        assert find_faults(cut), end


def test_progress(path: Path) -> None:
    done: list[int] = []
    check_file(path, done.append)
    assert 0 < sum(done) <= path.stat().st_size


def test_as_a_command(path: Path, edit: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert_without_torch("verify", str(path))
    assert app.run(["verify", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: no fault was found\n"
    file = edit({MODEL: changed(return_nothing)})
    assert app.run(["verify", str(file), "--json"]) == 1
    (fault,) = json.loads(capsys.readouterr().out)
    assert fault["record"].endswith(MODEL)
    failed = run("verify", "nowhere.pt2")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert failed.stderr == "fxpress: nowhere.pt2: No such file or directory\n"

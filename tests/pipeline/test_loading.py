"""One stage is loaded apart from the others, and chained they compute what the program does."""

from __future__ import annotations

import hashlib
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export
from torch.utils import _pytree as pytree

import fxpress
from fxpress import pipeline
from fxpress.archive import Limits
from fxpress.pipeline import PipelineError, load_stage, save_stages
from tests.support.pipelines import Tied, batches, tied
from tests.support.process import bytes_read
from tests.support.records import read_records, write_records


def chained(path: Path, args: Any, kwargs: Any) -> Any:
    """Return what the stages compute one after another."""
    first = load_stage(path, 0)
    stages = [first, *(load_stage(path, number) for number in range(1, first.count))]
    given = first.module(*args, **kwargs)
    for stage in stages[1:]:
        given = stage.module(*given)
    return stages[-1].results(given)


class Mixed(nn.Module):
    """Inputs of all kinds; results of all stages, inputs, constants, numbers, permuted values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor, pair: tuple[Tensor, Tensor], *, scale: Tensor) -> dict[str, Any]:
        first = x = self.layers[0](x)
        turned = x.transpose(0, 1)
        for layer in self.layers[1:4]:
            x = layer(x).relu()
        x = self.norm(x) + turned.transpose(0, 1) * scale
        for layer in self.layers[4:]:
            x = layer(x + pair[1])
        rows = x.shape[0]
        return {
            "x": x.reshape(rows * 8),
            "turned": turned,
            "all": [first, pair[0], scale, None, 3, "text", rows],
        }


def mixed() -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    args = torch.randn(4, 8), (torch.randn(4, 8), torch.randn(4, 8))
    kwargs = {"scale": torch.randn(8)}
    rows = Dim("rows", min=2, max=64)
    shapes = {"x": {0: rows}, "pair": ({0: rows}, {0: rows}), "scale": None}
    return export(Mixed().eval(), args, kwargs, dynamic_shapes=shapes), args, kwargs


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_program(count: int, name: str, tmp_path: Path) -> None:
    program, args, kwargs = mixed()
    save_stages(program, tmp_path / name, count)
    found, wanted = chained(tmp_path / name, args, kwargs), program.module()(*args, **kwargs)
    leaves, spec = pytree.tree_flatten(found)
    others, other_spec = pytree.tree_flatten(wanted)
    assert spec == other_spec
    for one, other in zip(leaves, others, strict=True):
        if isinstance(other, Tensor):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()
        else:
            assert one == other


def test_names_and_weights_are_the_whole_programs(tmp_path: Path) -> None:
    model = Tied(3)
    program = export(model, (batches(1)[0][0],))
    save_stages(program, tmp_path / "stages", 3)
    found: dict[str, Tensor] = {}
    for number in range(3):
        stage = load_stage(tmp_path / "stages", number)
        found |= stage.module.state_dict()
        for name, value in stage.module.named_parameters():
            assert value.requires_grad
            assert name in stage.module.state_dict()
    whole = model.state_dict()
    assert found.keys() == whole.keys()
    assert all(torch.equal(value, whole[name]) for name, value in found.items())
    assert load_stage(tmp_path / "stages", 0).shared == {"head.weight": (0, 2)}
    assert load_stage(tmp_path / "stages", 1).shared == {}


@pytest.mark.parametrize("options", [{"mmap": True}, {"device": "cpu"}, {"load_weights": False}])
def test_options(options: dict[str, Any], tmp_path: Path) -> None:
    save_stages(tied(1), tmp_path / "stages", 2)
    module = load_stage(tmp_path / "stages", 0, **options).module
    is_meta = options == {"load_weights": False}
    assert {each.is_meta for each in module.parameters()} == {is_meta}


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
def test_only_the_stage_is_read(name: str, tmp_path: Path) -> None:
    """By what the system counts: at most 1.05 of the stage's bytes, and the directory."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(16)))
    save_stages(export(model, (torch.randn(2, 512),)), tmp_path / name, 4)
    load_stage(tmp_path / name, 0)  # what is read once in a process
    before = bytes_read()
    stage = load_stage(tmp_path / name, 1)
    read = bytes_read() - before
    weights = sum(each.nbytes for each in stage.module.parameters())
    assert weights == 4 * (512 * 512 + 512) * 4
    assert read < 1.05 * weights


def test_an_archive_is_read_by_torch_too(tmp_path: Path) -> None:
    save_stages(tied(1), tmp_path / "stages.pt2", 2)
    found = torch.export.pt2_archive._package.load_pt2(str(tmp_path / "stages.pt2"))
    assert set(found.exported_programs) == {"stage_0", "stage_1"}


def test_results_of_the_last_stage_only(tmp_path: Path) -> None:
    save_stages(tied(1), tmp_path / "stages", 2)
    with pytest.raises(PipelineError, match="stage 0 does not return results, only stage 1 does"):
        load_stage(tmp_path / "stages", 0).results(torch.zeros(1))


def test_what_is_not_there(tmp_path: Path) -> None:
    save_stages(tied(1), tmp_path / "stages", 2)
    for number in (-1, 2):
        with pytest.raises(
            PipelineError, match=f"stage {number} does not exist: .* has stages 0 to 1"
        ):
            load_stage(tmp_path / "stages", number)
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match=r"does not contain stages: manifest.json is missing"):
        load_stage(tmp_path / "empty", 0)
    with pytest.raises(FileNotFoundError):
        load_stage(tmp_path / "nothing", 0)
    fxpress.save(tied(1), tmp_path / "model.pt2")
    with pytest.raises(PipelineError, match="does not contain stages: save them with save_stages"):
        load_stage(tmp_path / "model.pt2", 0)
    (tmp_path / "stages" / "stage_1.pt2").unlink()
    load_stage(tmp_path / "stages", 0)
    with pytest.raises(FileNotFoundError):
        load_stage(tmp_path / "stages", 1)


def test_arguments_of_another_structure(tmp_path: Path) -> None:
    save_stages(tied(1), tmp_path / "stages", 2)
    first, second = (load_stage(tmp_path / "stages", number).module for number in range(2))
    tokens, _ = batches(1)[0]
    with pytest.raises(PipelineError, match="stage 0 expects the inputs of the program"):
        first(tokens, tokens)
    with pytest.raises(PipelineError, match="stage 0 expects the inputs of the program"):
        first(other=tokens)
    with pytest.raises(PipelineError, match=r"expects \d+ tensors from the previous stage, got 0"):
        second()


def test_stages_without_a_process_group(tmp_path: Path) -> None:
    save_stages(tied(1), tmp_path / "stages", 2)
    with pytest.raises(ValueError, match="not initialized"):
        pipeline.load_stages(tmp_path / "stages")


@pytest.mark.parametrize(
    ("schedule", "ranks", "stages", "wanted"),
    [
        ("1F1B", 3, 3, [[0], [1], [2]]),
        ("GPipe", 1, 1, [[0]]),
        ("Interleaved1F1B", 2, 6, [[0, 2, 4], [1, 3, 5]]),
        ("DualPipeV", 3, 6, [[0, 5], [1, 4], [2, 3]]),
    ],
)
def test_placement(schedule: str, ranks: int, stages: int, wanted: list[list[int]]) -> None:
    assert pipeline.placement(schedule, ranks, stages) == wanted


@pytest.mark.parametrize(
    ("schedule", "ranks", "stages", "text"),
    [
        ("1F1B", 2, 3, "1F1B on 2 ranks runs 2 stages, not 3"),
        ("Interleaved1F1B", 2, 3, "Interleaved1F1B on 2 ranks runs a multiple of 2 stages, not 3"),
        ("ZBVZeroBubble", 2, 2, "ZBVZeroBubble on 2 ranks runs 4 stages, not 2"),
    ],
)
def test_no_placement(schedule: str, ranks: int, stages: int, text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        pipeline.placement(schedule, ranks, stages)


def _change(document: Any, path: list[Any], value: Any) -> None:
    for step in path[:-1]:
        document = document[step]
    document[path[-1]] = value


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        (["format"], "else", "the text is not of the format 'fxpress stages'"),
        (["version"], 99, "has version 99"),
        (["stages"], {}, "stages is invalid"),
        (["stages", 0, "file"], "../other.pt2", "is not the name of a file"),
        (["stages", 0, "file"], "", "is not the name of a file"),
        (["stages", 0, "records"], "0" * 64, "has changed since it was written"),
        (["stages", 1, "inputs", 0, "from"], {"stage": 1, "output": "x"}, "of a previous stage"),
        (["stages", 1, "inputs", 0, "from"], {"stage": 7, "output": "x"}, "of a previous stage"),
        (["stages", 1, "inputs", 0, "order"], [0, 0, 0], "order is invalid"),
        (["stages", 1, "inputs", 0, "shape"], 3, "shape is invalid"),
        (["shared"], [{"names": ["a"], "stages": [5]}], "stages is invalid"),
        (["inputs", 0, "name"], None, "name is invalid"),
        (["in_spec"], "[1, {]", "a tree spec"),
        (["in_spec"], '[1, {"type": "os.system", "context": "null", "children_spec": []}]', "os"),
        (["outputs", 0, "from"], {"input": "nothing"}, "the results: expected one"),
    ],
)
def test_a_manifest_that_was_changed(
    path: list[Any], value: Any, text: str, tmp_path: Path
) -> None:
    save_stages(mixed()[0], tmp_path / "stages", 2)
    file = tmp_path / "stages" / "manifest.json"
    document = json.loads(file.read_text())
    del document["digest"]
    _change(document, path, value)
    file.write_text(json.dumps(document))
    with pytest.raises(fxpress.Error, match=text):
        load_stage(tmp_path / "stages", 0)


def test_a_manifest_that_is_damaged(tmp_path: Path) -> None:
    """A bit of it, which may be in a constant that the program returns, or in a name."""
    save_stages(mixed()[0], tmp_path / "stages", 2)
    file = tmp_path / "stages" / "manifest.json"
    data = file.read_bytes()
    key = data.rindex(b'"digest"')  # without it, it is one of an older version
    chance = random.Random(0)
    for _ in range(100):
        at = chance.choice([*range(key), *range(key + 8, len(data))])
        changed = bytearray(data)
        changed[at] ^= 1 << chance.randrange(8)
        file.write_bytes(changed)
        with pytest.raises(PipelineError, match=r"^the manifest of the stages"):
            load_stage(tmp_path / "stages", 0)


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
def test_a_manifest_has_limits(name: str, tmp_path: Path) -> None:
    """Of what is made of it, also where it is compressed in an archive, and of its depth."""
    path = tmp_path / name
    pipeline.save_stages(mixed()[0], path, 2)
    small = Limits(memory=8 << 20, memory_per_byte=0)
    for limit, inner in (("memory", "[]," * 200_000 + "[]"), ("depth", "[" * 600 + "]" * 600)):
        text = f'{{"format": "fxpress stages", "more": [{inner}]}}'.encode()
        if path.is_dir():
            (path / "manifest.json").write_bytes(text)
        else:
            records = read_records(path.read_bytes())
            place = next(name for name in records if name.endswith("extra/manifest.json"))
            path.write_bytes(write_records(records | {place: text}, zipfile.ZIP_DEFLATED))
        with pytest.raises(fxpress.LimitError, match="stages") as raised:
            pipeline.load_stage(path, 0, limits=small)
        assert raised.value.limit == limit


@pytest.mark.parametrize("has_checksum", [True, False])
def test_a_manifest_of_an_earlier_version(has_checksum: bool, tmp_path: Path) -> None:
    """It has the checksum of its text, or none, in place of a digest."""
    save_stages(mixed()[0], tmp_path / "stages", 2)
    file = tmp_path / "stages" / "manifest.json"
    document = {"checksum": "0" * 64, **json.loads(file.read_text())}
    del document["digest"]
    if not has_checksum:
        del document["checksum"]
    text = json.dumps(document, indent=2) + "\n"
    made = hashlib.sha256(text.encode()).hexdigest()
    file.write_text(text.replace("0" * 64, made, 1) if has_checksum else text)
    load_stage(tmp_path / "stages", 0)
    if has_checksum:
        file.write_text(text)
        with pytest.raises(PipelineError, match="its checksum is wrong"):
            load_stage(tmp_path / "stages", 0)


@pytest.mark.parametrize("data", [b"", b"[" * 10, b"\xff\xfe", b"null", b"[]", b"{}"])
def test_no_manifest(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(PipelineError, match="the manifest of the stages"):
        load_stage(tmp_path, 0)

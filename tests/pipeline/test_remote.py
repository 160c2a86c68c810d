"""Stages at URLs: only what belongs to a stage is read, and what is wrong is one error."""

from __future__ import annotations

import random
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.export import export

import fxpress
from fxpress import archive, pipeline
from tests.support.pipelines import batches, tied
from tests.support.ranks import run_ranks
from tests.support.stores import SCHEME, Store

STAGES = 4


class Wide(nn.Module):
    """A model whose weights are much larger than its graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(2 * STAGES)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    torch.manual_seed(0)
    program = export(Wide(), (torch.randn(2, 256),))
    for name in ("stages", "stages.pt2"):
        pipeline.save_stages(program, folder / name, STAGES)
    return folder


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    Store.empty()
    yield
    Store.empty()


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
def test_equal(name: str, saved: Path) -> None:
    url = Store.put(saved / name, f"bucket/{name}")
    for number in range(STAGES):
        wanted = pipeline.load_stage(saved / name, number)
        for options in ({}, {"mmap": True}):
            found = pipeline.load_stage(url, number, **options)
            assert found.source.digest == wanted.source.digest
            state = wanted.module.state_dict()
            assert found.module.state_dict().keys() == state.keys()
            for key, value in found.module.state_dict().items():
                assert torch.equal(value, state[key])


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
def test_what_is_read(name: str, saved: Path) -> None:
    """At most 1.05 times the bytes of the stage, besides the manifest and the directory."""
    url = Store.put(saved / name, f"bucket/{name}")
    manifest = (saved / "stages" / "manifest.json").stat().st_size
    for number in range(STAGES):
        Store.forget()
        stage = pipeline.load_stage(url, number)
        own = (saved / "stages" / f"stage_{number}.pt2").stat().st_size
        if name == "stages":
            others = {path for path, *_ in Store.ranges} - {
                f"bucket/stages/stage_{number}.pt2",
                "bucket/stages/manifest.json",
            }
            assert not others
        assert Store.read() <= 1.05 * own + manifest + 2**16
        assert Store.read() < sum(map(len, Store.objects.values())) / 2
        assert len(Store.ranges) < 12
        assert stage.module.facts.bytes < Store.read()


# Rows of a weight for the first layer of a stage, columns for the second.
SHARDS: dict[str, ParallelStyle] = {
    **{f"layers.{number}": ColwiseParallel() for number in range(0, 2 * STAGES, 2)},
    **{f"layers.{number}": RowwiseParallel() for number in range(1, 2 * STAGES, 2)},
}


def over_a_mesh(path: Path, style: str) -> tuple[int, int, int, dict[str, Any]]:
    """Load a stage over all ranks from a store of this rank.

    Returns:
        The bytes read, those without the weights, those of this rank's part, and the state.
    """
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    plan = SHARDS if style == "both" else dict.fromkeys(SHARDS, ColwiseParallel())
    local = pipeline.load_stage(path, 1, mesh=mesh, plan=plan).module.state_dict()
    url = Store.put(path, f"bucket/{path.name}")
    pipeline.load_stage(url, 1, mesh=mesh, plan=plan, load_weights=False)
    graph = Store.read()
    Store.forget()
    found = pipeline.load_stage(url, 1, mesh=mesh, plan=plan).module.state_dict()
    read = Store.read()
    parts = {}
    for key, value in found.items():
        assert isinstance(value, DTensor) == isinstance(local[key], DTensor)
        parts[key] = value.to_local() if isinstance(value, DTensor) else value
        other = local[key].to_local() if isinstance(value, DTensor) else local[key]
        assert torch.equal(parts[key], other)
    whole = {
        key: value.full_tensor() if isinstance(value, DTensor) else value
        for key, value in found.items()
    }
    return read, graph, sum(part.nbytes for part in parts.values()), whole


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_stage_over_a_mesh(name: str, ranks: int, saved: Path) -> None:
    """Each rank reads its rows, some headers and the graph."""
    wanted = pipeline.load_stage(saved / name, 1).module.state_dict()
    for read, graph, part, whole in run_ranks(ranks, over_a_mesh, saved / name, "rows"):
        assert part < read - graph <= 1.05 * part + 2**12
        assert all(torch.equal(whole[key], value) for key, value in wanted.items())


def test_columns_over_a_mesh(saved: Path) -> None:
    """Rows are short here, so that all of a weight is read that is cut by columns."""
    wanted = pipeline.load_stage(saved / "stages", 1).module.state_dict()
    bytes_of_all = sum(value.nbytes for value in wanted.values())
    for read, graph, _, whole in run_ranks(2, over_a_mesh, saved / "stages", "both"):
        assert read - graph <= 0.8 * bytes_of_all
        assert all(torch.equal(whole[key], value) for key, value in wanted.items())


def changing_over_a_mesh(path: Path, which: int) -> None:
    mesh = init_device_mesh("cpu", (1,))
    url = Store.put(path, f"bucket/{path.name}")

    def answer(asked: str, data: bytes, number: int) -> bytes:
        if number == which:
            Store.objects[asked] = Store.objects[asked] + b"\0"
        return data

    Store.answer = answer
    pipeline.load_stage(url, 1, mesh=mesh, plan=SHARDS)


@pytest.mark.parametrize("which", [1, 3, 5, 7])
def test_a_file_that_changes_while_a_mesh_reads_it(which: int, saved: Path) -> None:
    (text,) = run_ranks(1, changing_over_a_mesh, saved / "stages.pt2", which, fails=True)
    assert re.fullmatch(r"PipelineError: .*/stages\.pt2 has changed while it was read", text)


def test_without_weights(saved: Path) -> None:
    url = Store.put(saved / "stages", "bucket/stages")
    stage = pipeline.load_stage(url, 0, load_weights=False)
    assert all(value.is_meta for value in stage.module.state_dict().values())
    assert Store.read() < 0.5 * stage.module.facts.bytes


def test_the_stages_of_a_rank_share_the_directory(saved: Path) -> None:
    """Weights that stages share, numbers that pass, and results."""
    folder = saved / "tied.pt2"
    pipeline.save_stages(tied(), folder, 2)
    url = Store.put(folder, "bucket/tied.pt2")
    first, last = (pipeline.load_stage(url, number) for number in range(2))
    (tokens, _) = batches(1)[0]
    wanted = tied().module()(tokens)
    assert torch.equal(last.results(last.module(*first.module(tokens))), wanted)


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
def test_file_and_memory(name: str, saved: Path) -> None:
    wanted = pipeline.load_stage(saved / name, 1).module.state_dict()
    memory = fsspec.filesystem("memory")
    memory.put(str(saved / name), f"/bucket/{name}", recursive=True)
    for url in (f"file://{saved / name}", f"memory://bucket/{name}"):
        found = pipeline.load_stage(url, 1).module.state_dict()
        assert all(torch.equal(found[key], value) for key, value in wanted.items())
    memory.rm("/bucket", recursive=True)


def failing(url: str, number: int = 1) -> Exception:
    with pytest.raises((OSError, fxpress.Error)) as caught:
        pipeline.load_stage(url, number)
    return caught.value


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
@pytest.mark.parametrize("by", [-1, 1, 2**40])
def test_a_server_that_lies_about_sizes(name: str, by: int, saved: Path) -> None:
    url = Store.put(saved / name, f"bucket/{name}")
    Store.size = lambda path, size: size + by if path.endswith(".pt2") else size
    assert isinstance(failing(url), (OSError, fxpress.ArchiveError))
    Store.size = lambda path, size: None
    assert "does not report the size" in str(failing(url))


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
@pytest.mark.parametrize("which", range(6))
@pytest.mark.parametrize("change", ["short", "long", "empty", "other"])
def test_a_request_that_goes_wrong(name: str, which: int, change: str, saved: Path) -> None:
    url = Store.put(saved / name, f"bucket/{name}")

    def answer(path: str, data: bytes, number: int) -> bytes:
        if number != which:
            return data
        return {
            "short": data[:-1],
            "long": data + b"\0",
            "empty": b"",
            "other": bytes(byte ^ 0xFF for byte in data),
        }[change]

    pipeline.load_stage(url, 1)
    requests = len(Store.ranges)
    Store.forget()
    Store.answer = answer
    if which < requests:
        assert isinstance(failing(url), (OSError, fxpress.ArchiveError, pipeline.PipelineError))


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
def test_damaged_directories(name: str, saved: Path) -> None:
    """A byte or some, anywhere in the directory: the same stage, or one error."""
    url = Store.put(saved / name, f"bucket/{name}")
    path = "bucket/stages/stage_1.pt2" if name == "stages" else "bucket/stages.pt2"
    whole = Store.objects[path]
    wanted = pipeline.load_stage(url, 1).module.state_dict()
    with zipfile.ZipFile(
        saved / name / "stage_1.pt2" if name == "stages" else saved / name
    ) as read:
        begin = read.start_dir
    chance = random.Random(0)
    failed = 0
    for _ in range(300):
        data = bytearray(whole)
        at = chance.randrange(begin, len(data))
        if chance.random() < 0.5:
            data[at] = chance.randrange(256)
        else:
            data[at : at + 4] = chance.randbytes(min(4, len(data) - at))
        Store.objects[path] = bytes(data)
        try:
            found = pipeline.load_stage(url, 1).module.state_dict()
        except (OSError, fxpress.Error):
            failed += 1
        else:
            assert all(torch.equal(found[key], value) for key, value in wanted.items())
    assert failed > 100


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
def test_a_file_that_changes_between_ranges(name: str, saved: Path) -> None:
    url = Store.put(saved / name, f"bucket/{name}")
    pipeline.load_stage(url, 1)
    requests = len(Store.ranges)
    path = "bucket/stages/stage_1.pt2" if name == "stages" else "bucket/stages.pt2"
    for which in range(1, requests):
        Store.put(saved / name, f"bucket/{name}")
        Store.forget()

        def answer(asked: str, data: bytes, number: int, which: int = which) -> bytes:
            if number == which:  # another byte of a weight of another stage: the sizes stay
                changed = bytearray(Store.objects[path])
                changed[100] ^= 1
                Store.objects[path] = bytes(changed)
            return data

        Store.answer = answer
        error = failing(url)
        assert isinstance(error, pipeline.PipelineError), (which, error)
        assert str(error).endswith(" has changed while it was read")


def test_a_file_of_another_save(saved: Path, tmp_path: Path) -> None:
    url = Store.put(saved / "stages", "bucket/stages")
    torch.manual_seed(1)
    pipeline.save_stages(export(Wide(), (torch.randn(2, 256),)), tmp_path / "other", STAGES)
    Store.put(tmp_path / "other" / "stage_1.pt2", "bucket/stages/stage_1.pt2")
    error = failing(url)
    assert isinstance(error, pipeline.PipelineError)
    assert str(error) == "stage_1.pt2 has changed since it was written with its manifest"


def test_what_is_not_there() -> None:
    error = failing(f"{SCHEME}://bucket/nothing")
    assert str(error) == (
        f"{SCHEME}://bucket/nothing does not contain stages: manifest.json is missing"
    )
    error = failing(f"{SCHEME}://bucket/nothing.pt2")
    assert isinstance(error, FileNotFoundError)
    error = failing("nothing-knows-this://bucket/stages")
    assert isinstance(error, fxpress.UnsupportedError)


def test_an_archive_without_stages(tmp_path: Path) -> None:
    archive.save(tied(1), tmp_path / "model.pt2")
    url = Store.put(tmp_path / "model.pt2", "bucket/model.pt2")
    assert str(failing(url)) == f"{url} does not contain stages: save them with save_stages"


def test_a_large_directory(saved: Path) -> None:
    """A directory that is not small is charged to the limits before it is read."""
    url = Store.put(saved / "stages.pt2", "bucket/stages.pt2")
    with pytest.raises(fxpress.LimitError):
        pipeline.load_stage(url, 0, limits=archive.Limits(memory=1000, memory_per_byte=0.0))


def test_secrets_are_not_shown() -> None:
    error: Any = failing(f"{SCHEME}://user:secret@bucket/stages?signature=secret")
    assert "secret" not in str(error)


def test_secrets_in_errors_of_the_file_system_are_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: Store, path: str, **__: Any) -> None:
        raise RuntimeError(f"no access to {SCHEME}://{path}")

    monkeypatch.setattr(Store, "info", refuse)
    error = failing(f"{SCHEME}://user:secret@bucket/stages.pt2?signature=secret")
    url = f"{SCHEME}://bucket/stages.pt2"
    assert str(error) == f"{url}: RuntimeError: no access to {url}"


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
def test_save(name: str, saved: Path) -> None:
    torch.manual_seed(0)
    program = export(Wide(), (torch.randn(2, 256),))
    url = f"{SCHEME}://bucket/{name}"
    pipeline.save_stages(program, url, STAGES)
    if name == "stages":
        assert list(Store.objects)[-1] == "bucket/stages/manifest.json"
        with pytest.raises(pipeline.StageError, match="exists already"):
            pipeline.save_stages(program, url, STAGES)
    wanted = pipeline.load_stage(saved / name, 2).module.state_dict()
    found = pipeline.load_stage(url, 2).module.state_dict()
    assert all(torch.equal(found[key], value) for key, value in wanted.items())


def test_a_save_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The written files are removed."""
    put = Store.put_file

    def failing_put(self: Store, local: str, place: str, *args: Any, **options: Any) -> None:
        if "stage_1" in place:
            raise RuntimeError("no space")
        put(self, local, place)

    monkeypatch.setattr(Store, "put_file", failing_put)
    with pytest.raises(OSError, match=r"stage_1\.pt2: RuntimeError: no space"):
        pipeline.save_stages(tied(), f"{SCHEME}://bucket/stages", 2)
    assert not Store.objects


def test_http_is_not_written_to() -> None:
    with pytest.raises(fxpress.UnsupportedError, match="by HTTP"):
        pipeline.save_stages(tied(), "http://127.0.0.1/stages", 2)

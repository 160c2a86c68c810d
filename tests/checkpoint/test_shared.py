"""Names that share memory are never given different values, whatever writes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.export import ExportedProgram, export

import fxpress
from fxpress import pipeline, state
from fxpress._files.archive.weight_files import check_shared, overlapping
from fxpress.checkpoint import convert_weights
from tests.support.checkpoints import assert_same, bits, load

PAIRS = [("embedding.weight", "head.weight"), ("whole", "part"), ("table", "turned")]


class Model(nn.Module):
    """Has state of which two names are one, one is a part of the other, or is transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("whole", torch.arange(8.0))
        self.register_buffer("part", self.whole[2:6])
        self.table = nn.Parameter(torch.randn(4, 4))
        self.turned = nn.Parameter(self.table.detach().T)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) @ self.table
        x = (x + self.part).relu() @ self.turned
        return self.head(x) + self.whole


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    torch.manual_seed(0)
    return export(Model().eval(), (torch.randint(0, 8, (5,)),))


def values_of(program: ExportedProgram) -> dict[str, Tensor]:
    """Return other values of the state, which share no memory, and agree."""
    made = {name: torch.full_like(value, 1.5) for name, value in program.state_dict.items()}
    return {name: value.detach().contiguous() for name, value in made.items()}


def into_program(program: ExportedProgram, values: dict[str, Tensor], folder: Path) -> Any:
    fxpress.save(program, folder / "model.pt2")
    loaded = fxpress.load(folder / "model.pt2")
    before = {name: bits(value) for name, value in loaded.state_dict.items()}
    try:
        state.load_into(loaded, values)
    except fxpress.SerializeError:
        assert before == {name: bits(value) for name, value in loaded.state_dict.items()}
        raise
    return loaded.state_dict


def into_program_on_meta(program: ExportedProgram, values: dict[str, Tensor], folder: Path) -> Any:
    fxpress.save(program, folder / "model.pt2")
    loaded = fxpress.load(folder / "model.pt2", load_weights=False)
    save_file(values, folder / "values.safetensors")
    state.load_into(loaded, folder / "values.safetensors")
    return loaded.state_dict


def converted(program: ExportedProgram, values: dict[str, Tensor], folder: Path) -> Any:
    save_file(values, folder / "values.safetensors")
    convert_weights(folder / "values.safetensors", folder / "made.pt2", program=program)
    return fxpress.load(folder / "made.pt2").state_dict


def converted_to_stages(program: ExportedProgram, values: dict[str, Tensor], folder: Path) -> Any:
    save_file(values, folder / "values.safetensors")
    convert_weights(folder / "values.safetensors", folder / "made", program=program, stages=2)
    return load({name: torch.empty_like(value) for name, value in values.items()}, folder / "made")


def beside(program: ExportedProgram, values: dict[str, Tensor], folder: Path) -> Any:
    """The weights of a program are in a file that was replaced by another with the same number."""
    fxpress.save(program, folder / "model.pt2", weights="safetensors")
    (file,) = folder.glob("*.safetensors")
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    assert load_file(file).keys() == values.keys()
    save_file(values, file, metadata)
    return fxpress.load(folder / "model.pt2").state_dict


def read(program: ExportedProgram, values: dict[str, Tensor], folder: Path) -> Any:
    save_file(values, folder / "values.safetensors")
    fxpress.save(program, folder / "model.pt2")
    targets = dict(fxpress.load(folder / "model.pt2").state_dict)
    try:
        return load(targets, folder / "values.safetensors")
    except CheckpointException as error:
        ((cause, _),) = error.failures.values()
        raise cause from None


def into_stage(program: ExportedProgram, values: dict[str, Tensor], folder: Path) -> Any:
    pipeline.save_stages(program, folder / "stages", 1)
    module = pipeline.load_stage(folder / "stages", 0).module
    own = {name: value for name, value in values.items() if name in module.state_dict()}
    assert len(own) == len(values)
    module.load_state_dict(own)
    return module.state_dict()


WRITERS = [
    into_program,
    into_program_on_meta,
    converted,
    converted_to_stages,
    beside,
    read,
    into_stage,
]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("pair", PAIRS, ids=" ".join)
def test_different_values_are_refused(
    write: Callable[..., Any], pair: tuple[str, str], program: ExportedProgram, tmp_path: Path
) -> None:
    values = values_of(program)
    values[pair[1]].view(-1)[1] = 7
    with pytest.raises(fxpress.SerializeError) as caught:
        write(program, values, tmp_path)
    assert all(repr(name) in str(caught.value) for name in pair)


@pytest.mark.parametrize("write", WRITERS)
def test_the_same_values_are_written(
    write: Callable[..., Any], program: ExportedProgram, tmp_path: Path
) -> None:
    values = values_of(program)
    values["whole"][:] = torch.arange(8.0)
    values["part"][:] = values["whole"][2:6]
    values["table"][:] = torch.arange(16.0).view(4, 4)
    values["turned"][:] = values["table"].T
    values["head.weight"][0, 0] = values["embedding.weight"][0, 0] = torch.nan
    assert_same(write(program, values, tmp_path), values)


ROW = torch.arange(12.0)


@pytest.mark.parametrize(
    ("parts", "values", "names"),
    [
        ([ROW[:4], ROW[4:]], [ROW[:4], ROW[:8]], None),
        ([ROW[:6], ROW[4:]], [ROW[:6], ROW[:8]], "'0' and '1'"),
        ([ROW.view(3, 4)[:, :2], ROW.view(3, 4)[:, 2:]], [ROW[:6].view(3, 2)] * 2, None),
        ([ROW[:1].expand(5), ROW[:1]], [torch.ones(5), torch.ones(1)], None),
        ([ROW[:1].expand(5), ROW[:1]], [torch.ones(5), torch.zeros(1)], "'0' and '1'"),
        ([ROW, ROW.view(torch.int32)], [ROW, ROW.view(torch.int32).clone()], None),
        ([ROW.view(torch.uint8)[3:9], ROW], [torch.ones(6).byte(), ROW], "'0' and '1'"),
        ([ROW[:6], ROW[6:], ROW], [ROW[:6], ROW[:6], ROW], "'1' and '2'"),
        ([ROW[0], ROW[0]], [torch.tensor(0.0), torch.tensor(-0.0)], "'0' and '1'"),
        ([ROW, ROW[1:3]], [ROW, ROW[1:3].clone()], None),
        ([ROW, ROW], [ROW * torch.nan, ROW * torch.nan], None),
        ([ROW[:0], ROW], [ROW[:0], ROW], None),
    ],
)
def test_parts_of_a_storage(parts: list[Tensor], values: list[Tensor], names: str | None) -> None:
    before = bits(ROW)
    if names is None:
        check_shared(["0", "1", "2"], parts, values)
    else:
        with pytest.raises(fxpress.SerializeError, match=names):
            check_shared(["0", "1", "2"], parts, values)
    assert bits(ROW) == before


def test_parts_that_do_not_meet_are_not_compared() -> None:
    assert overlapping([*ROW.split(3), torch.zeros(3)]) == []


@pytest.mark.parametrize(
    ("step", "width", "count"),
    [(1, 2, 2000), (1 << 18, 1 << 15, 150)],
    ids=["a chain of overlapping parts", "pairs that are far apart"],
)
def test_many_parts_of_a_storage(step: int, width: int, count: int) -> None:
    """Each value is copied a fixed number of times, and a group needs the memory of its parts."""
    row = torch.zeros(step * count + width)
    parts = [row[step * i :][: width - j] for i in range(count) for j in range(1 + (step > 1))]
    values = [part.clone() for part in parts]
    names = [str(i) for i in range(len(parts))]
    start = time.process_time()
    check_shared(names, parts, values)
    assert time.process_time() - start < 2
    values[-1][0] = 1
    with pytest.raises(fxpress.SerializeError, match=f"'{len(parts) - 2}' and '{len(parts) - 1}'"):
        check_shared(names, parts, values)

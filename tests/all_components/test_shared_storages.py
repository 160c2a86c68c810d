"""A write to one tensor is visible in the others on its storage, as in the model."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export

from fxpress import UnsupportedError, archive, pipeline, state
from fxpress.decompose import run_decompositions
from fxpress.unflatten import unflatten
from tests.support.records import read_records, write_records

X = torch.ones(2)


class Model(nn.Module):
    """Reads `whole` before and after a write to `part`, a view of it."""

    part: Tensor
    whole: Tensor

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin() + self.whole.sum()
        x = x.cos() + 1
        self.part.add_(1)
        return x.cos() + self.whole.float().sum()


class Listed(Model):
    """A tensor in a list, of which non-strict export makes a constant."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.held = [values]

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin() + self.held[0].sum()
        x = x.cos() + 1
        self.part.add_(1)
        return x.cos() + self.held[0].sum()


class Child(nn.Module):
    """Writes a row of its cache."""

    cache: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.cache.index_copy_(0, torch.tensor([1]), (self.cache[1] + x.sum())[None])
        return x.cos() + self.cache.sum()


class Cache(nn.Module):
    """A tensor is a buffer of the root and of a child, and both write it, as with static caches."""

    cache_0: Tensor

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.child = Child()
        self.child.register_buffer("cache", torch.zeros(2, 3), persistent=persistent)
        self.register_buffer("cache_0", self.child.cache)

    def forward(self, x: Tensor) -> Tensor:
        x = self.child(x.sin()) + self.cache_0.sum()
        self.cache_0.mul_(2)
        y: Tensor = self.child(x.sin())
        return y.cos() + self.cache_0.sum()


def buffers(
    view: Callable[[Tensor], Tensor], of: Callable[[Tensor], Tensor] = lambda t: t, **kept: bool
) -> nn.Module:
    """Return a model with two buffers on one storage; `kept`: which are persistent."""
    made, values = Model(), torch.arange(6.0).reshape(2, 3)
    made.register_buffer("whole", of(values), persistent=kept.get("whole", True))
    made.register_buffer("part", view(values), persistent=kept.get("part", True))
    return made


def parameter(view: Callable[[Tensor], Tensor], persistent: bool) -> nn.Module:
    made = Model()
    made.whole = nn.Parameter(torch.arange(6.0).reshape(2, 3))
    made.register_buffer("part", view(made.whole.detach()), persistent=persistent)
    return made


def constant(view: Callable[[Tensor], Tensor], persistent: bool = True) -> nn.Module:
    made, values = Model(), torch.arange(6.0).reshape(2, 3)
    made.register_buffer("part", view(values), persistent=persistent)
    made.whole = values
    return made


def listed(view: Callable[[Tensor], Tensor]) -> nn.Module:
    values = torch.arange(6.0).reshape(2, 3)
    made = Listed(values)
    made.register_buffer("part", view(values))
    return made


MODELS: dict[str, Callable[[], nn.Module]] = {
    "row": lambda: buffers(lambda t: t[0]),
    "column": lambda: buffers(lambda t: t[:, 1]),
    "overlapping": lambda: buffers(lambda t: t.view(6)[2:], lambda t: t.view(6)[:4]),
    "the same": lambda: buffers(lambda t: t),
    "another dtype": lambda: buffers(lambda t: t.view(torch.int32)),
    "both written": lambda: Cache(persistent=True),
    "both written, one transient": lambda: Cache(persistent=False),
    "transient": lambda: buffers(lambda t: t[1], whole=False, part=False),
    "transient part": lambda: buffers(lambda t: t[1], part=False),
    "transient whole": lambda: buffers(lambda t: t[1], whole=False),
    "parameter": lambda: parameter(lambda t: t[0], True),
    "parameter, transient": lambda: parameter(lambda t: t[0], False),
    "parameter, the same": lambda: parameter(lambda t: t, True),
    "constant": lambda: constant(lambda t: t[0]),
    "constant, the same": lambda: constant(lambda t: t),
    "constant, transient": lambda: constant(lambda t: t[0], False),
    "list": lambda: listed(lambda t: t[0]),
    "list, the same": lambda: listed(lambda t: t),
}


def saved(program: ExportedProgram, folder: Path, **options: Any) -> ExportedProgram:
    archive.save(program, folder / "saved.pt2", **options)
    return archive.load(folder / "saved.pt2")


def in_stages(program: ExportedProgram, folder: Path) -> Callable[[Tensor], Tensor]:
    pipeline.save_stages(program, folder / "stages", 2)
    stages = [archive.load(folder / "stages" / f"stage_{i}.pt2").module() for i in range(2)]

    def run(x: Tensor) -> Tensor:
        values = (x,)
        for stage in stages:
            values = stage(*values)
        return values[0]

    return run


WAYS: dict[str, Callable[[ExportedProgram, Path], Any]] = {
    "unflatten": lambda program, _: unflatten(program),
    "unflatten, on a device": lambda program, _: unflatten(program, device="cpu"),
    "deep copy": lambda program, _: copy.deepcopy(unflatten(program)),
    "inline": lambda program, folder: saved(program, folder).module(),
    "safetensors": lambda program, folder: saved(program, folder, weights="safetensors").module(),
    "stages": in_stages,
}


def results(model: Any) -> Tensor:
    with torch.no_grad():
        return torch.stack([model(X) for _ in range(3)])


STRICT = ("row", "parameter", "constant, the same", "list", "both written")


@pytest.mark.parametrize(
    ("name", "strict"), [*((name, False) for name in MODELS), *((name, True) for name in STRICT)]
)
def test_a_write_is_visible_through_other_views(name: str, strict: bool, tmp_path: Path) -> None:
    expected = results(MODELS[name]())
    program = export(MODELS[name](), (X,), strict=strict)
    for way, make in WAYS.items():  # before the program's own state changes
        assert torch.equal(results(make(program, tmp_path)), expected), way
    assert torch.equal(results(program.module()), expected)


@pytest.mark.parametrize("name", MODELS)
def test_decomposed_programs_write_one_input(name: str, tmp_path: Path) -> None:
    """torch fails, because its trace does not accept inputs that are views of each other."""
    expected = results(MODELS[name]())
    program = export(MODELS[name](), (X,))
    with pytest.raises(AssertionError, match=r"expected compiled_fn|does not yet handle"):
        program.run_decompositions()
    if name == "another dtype":
        with pytest.raises(
            UnsupportedError, match="writes to 'whole', 'part', which are views of one"
        ):
            run_decompositions(program)
        return
    before = str(program)
    decomposed = run_decompositions(program)
    assert str(program) == before
    assert list(decomposed.state_dict) == list(program.state_dict)
    ways = {**WAYS, "again": lambda program, _: unflatten(run_decompositions(program))}
    for way, make in ways.items():
        assert torch.equal(results(make(decomposed, tmp_path)), expected), way
    assert torch.equal(results(decomposed.module()), expected)


def test_torch_separates_views() -> None:
    for name in ("row", "parameter", "constant"):
        expected = results(MODELS[name]())
        program = export(MODELS[name](), (X,))
        assert not torch.equal(results(torch.export.unflatten(program)), expected)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    assert not torch.equal(results(torch.export.load(buffer).module()), expected)


def test_views_that_no_node_uses_are_views_of_copies() -> None:
    class Unused(Model):
        def forward(self, x: Tensor) -> Tensor:
            self.part.add_(1)
            return x + self.part

    model = Unused()
    model.register_buffer("whole", torch.zeros(2, 2))
    model.register_buffer("part", model.whole[0])
    program = export(model, (X,))
    made = unflatten(program)
    made(X)
    assert torch.equal(made.whole, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    assert not program.state_dict["whole"].any()


def test_tensors_in_two_dtypes_share_a_storage_in_a_file_of_state(tmp_path: Path) -> None:
    values = torch.zeros(4)
    state.write({"values": values, "bits": values.view(torch.int32)}, tmp_path / "state.pt2")
    read = state.read(tmp_path / "state.pt2")
    read["values"].fill_(1)
    assert torch.equal(read["bits"], torch.ones(4).view(torch.int32))


def test_new_values_reach_constants_that_share_a_storage(tmp_path: Path) -> None:
    """Also where the program was read without its weights."""
    program = export(MODELS["constant"](), (X,))
    archive.save(program, tmp_path / "saved.pt2", weights="none")
    loaded = archive.load(tmp_path / "saved.pt2", load_weights=False)
    state.load_into(loaded, {"part": torch.tensor([7.0, 8.0, 9.0])})
    (whole,) = loaded.constants.values()
    assert torch.equal(whole, torch.tensor([[7.0, 8.0, 9.0], [3.0, 4.0, 5.0]]))


@pytest.mark.parametrize(
    "text",
    [
        *("{}", "[1]", '[{"state": ["absent", "part"], "constants": []}]', "[", '[{"state": 1}]'),
        '[{"state": ["part", "part"], "constants": []}]',  # each is a copy of its values
        '[{"state": ["part"], "constants": []}, {"state": ["part"], "constants": []}]',
    ],
)
def test_a_damaged_record_of_shared_storages(text: str, tmp_path: Path) -> None:
    program = export(MODELS["constant"](), (X,))
    archive.save(program, tmp_path / "saved.pt2")
    records = read_records((tmp_path / "saved.pt2").read_bytes())
    (name,) = (name for name in records if name.endswith("shared_storages.json"))
    records[name] = text.encode()
    with pytest.raises(archive.ArchiveError, match="shared_storages"):
        archive.load(bytearray(write_records(records)))


def test_disjoint_parts_of_a_storage_keep_their_inputs() -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            values = torch.zeros(2, 3)
            self.register_buffer("a", values[0])
            self.register_buffer("b", values[1])

        def forward(self, x: Tensor) -> Tensor:
            self.a.add_(1)
            self.b.sub_(x.sum())
            return x + self.a.sum() * self.b.sum()

    program = export(Parts(), (X,))
    expected = program.run_decompositions()
    assert str(run_decompositions(program).graph) == str(expected.graph)

"""The stages of a program, run one after another by the manifest, give the program's results."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

import fxpress
from fxpress._distributed.errors import StageError
from fxpress._distributed.stages import save
from fxpress._distributed.stages.costs import By
from fxpress._distributed.stages.plan import plan
from fxpress._distributed.stages.save import save_stages
from fxpress.checkpoint import convert_weights
from tests.support.exported import (
    skipped_unless_exported,
    transformer_configs,
)
from tests.support.found import find_faults
from tests.support.staged import Chain, assert_same_values, names_of_state

WIDTH = 32


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.mixed = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.mixed(self.norms[0](x)).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Transformer(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def chained(program: ExportedProgram, folder: Path, n: int, runs: int = 1, **options: Any) -> Any:
    """Save stages and run them as often as the program, whose inputs are its examples."""
    manifest = save_stages(program, folder, n, inputs=program.example_inputs, **options)
    assert json.loads((folder / "manifest.json").read_text()) == manifest
    assert len(manifest["stages"]) == n
    args, kwargs = program.example_inputs
    for load in (fxpress.load, torch.export.load):
        chain, whole = Chain(folder, load), copy.deepcopy(program).module()
        for _ in range(runs):
            torch.manual_seed(0)
            found = chain(*args, **kwargs)
            torch.manual_seed(0)
            assert_same_values(found, whole(*args, **kwargs))
    states = json.loads((folder / "state.json").read_text())["stages"]
    for stage, state in zip(manifest["stages"], states, strict=True):
        assert find_faults(folder / stage["file"]) == []
        own = fxpress.load(folder / stage["file"])
        names = {each.target for each in own.graph_signature.input_specs if each.target}
        assert {each["name"] for each in state} == names
        values = [value for name, value in own.state_dict.items() if name in names]
        storages = {
            each.untyped_storage()._cdata: each.untyped_storage().nbytes() for each in values
        }
        constants = [each.nbytes for each in own.constants.values()]
        assert stage["state_bytes"] == sum([*storages.values(), *constants])
        kinds = [value for value in values if isinstance(value, torch.nn.Parameter)]
        assert stage["parameters"] == sum(each.numel() for each in kinds)
    return manifest


def transformer() -> ExportedProgram:
    torch.manual_seed(0)
    return export(Transformer(3).eval(), (torch.randint(0, 64, (2, 8)),))


@pytest.mark.parametrize("by", ["parameters", "bytes", "flops", "time", "module"])
def test_transformer(by: By, tmp_path: Path) -> None:
    manifest = chained(transformer(), tmp_path / "out", 3, by=by)
    assert sum(stage["operations"] for stage in manifest["stages"]) == sum(
        node.op == "call_function" for node in transformer().graph.nodes
    )
    assert (tmp_path / "out" / "stages.svg").read_text().startswith("<?xml")


class Classifier(nn.Module):
    """Most of its parameters are in layers of a list, below one name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(6)
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


@pytest.mark.parametrize(("n", "begins"), [(2, "layers.2"), (3, "layers.1"), (8, "layers.0")])
def test_modules_of_the_depth_that_is_even(n: int, begins: str, tmp_path: Path) -> None:
    chained(export(Classifier().eval(), (torch.arange(4),)), tmp_path / "out", n, by="module")
    second = fxpress.load(tmp_path / "out" / "stage_1.pt2")
    node = next(node for node in second.graph.nodes if node.op == "call_function")
    assert [path for path, _ in node.meta["nn_module_stack"].values()][1] == begins


def test_decomposed(tmp_path: Path) -> None:
    chained(transformer().run_decompositions(), tmp_path / "out", 4)


class Cnn(nn.Module):
    """Convolutions, norms, in-place activations, and an in-place residual."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)) for _ in range(3)
        )
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(x))
        for block in self.blocks:
            y = block(x)
            y += x
            x = self.relu(y)
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("decomposed", [False, True])
def test_cnn(training: bool, decomposed: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    program = export(Cnn().train(training), (torch.randn(2, 3, 8, 8),))
    if decomposed:
        program = program.run_decompositions()
    manifest = chained(program, tmp_path / "out", 3, runs=2)
    if training and decomposed:  # what a stage writes is its own
        for stage, names in zip(manifest["stages"], names_of_state(tmp_path / "out"), strict=True):
            assert {*stage["writes"]} <= names
        written = sum(len(stage["writes"]) for stage in manifest["stages"])
        assert written == len(program.graph_signature.buffers_to_mutate) == 9


def test_llama(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(transformer_configs()["llama"]).eval()
    tokens = torch.randint(0, 64, (2, 6))
    program = export(model, (), {"input_ids": tokens, "use_cache": False}, strict=False)
    manifest = chained(program, tmp_path / "out", 2)
    assert manifest["inputs"][0]["path"] == "kwargs['input_ids']"


@pytest.mark.deep("each model is exported by torch")
@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_transformers(name: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformer_configs()[name]
    try:
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    except ValueError:  # it has no head for that
        model = transformers.AutoModel.from_config(config).eval()
    tokens = torch.randint(0, 64, (2, 6))
    with skipped_unless_exported():
        program = export(model, (), {"input_ids": tokens}, strict=False)
    chained(program, tmp_path / "out", 3, by="bytes")
    with skipped_unless_exported():
        program = program.run_decompositions()
    chained(program, tmp_path / "decomposed", 3, by="bytes")


class Several(nn.Module):
    """Many types of inputs; results are inputs, weights, constants and values of all stages."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.returned = nn.Parameter(torch.ones(3))
        self.register_buffer("late", torch.arange(4.0), persistent=False)
        self.constant = torch.full((4,), 2.0)

    def forward(self, x: Tensor, pair: tuple[Tensor, dict[str, Tensor]], *, flag: bool) -> Any:
        first = self.layers[0](x)
        second = self.layers[1](first + pair[0]) + self.constant
        third, fourth = self.layers[2](second).chunk(2, dim=-1)
        last = self.layers[3](torch.cat((fourth, third), -1) * first) + pair[1]["y"] + self.late
        return {"first": first, "x": x, "last": (last, 7 if flag else 8, None), "w": self.returned}


def test_several_inputs_and_outputs(tmp_path: Path) -> None:
    torch.manual_seed(0)
    pair = (torch.randn(2, 4), {"y": torch.randn(2, 4)})
    program = export(Several(), (torch.randn(2, 4), pair), {"flag": True})
    for n in (1, 2, 4):
        manifest = chained(program, tmp_path / str(n), n)
        paths = [each["path"] for each in manifest["inputs"]]
        assert paths == ["args[0]", "args[1][0]", "args[1][1]['y']", "kwargs['flag']"]
        outputs = {each["path"]: each["from"] for each in manifest["outputs"]}
        assert outputs["['x']"] == {"input": "x"}
        assert outputs["['last'][1]"] is outputs["['last'][2]"] is None


class Tied(nn.Module):
    """The last layer has the weights of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.middle = nn.Linear(8, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.embedding(x)))


def test_tied_weights(tmp_path: Path) -> None:
    manifest = chained(export(Tied(), (torch.arange(4),)), tmp_path / "out", 3, by="module")
    (shared,) = manifest["shared"]
    assert shared["stages"] == [0, 2]
    assert set(shared["names"]) <= {"embedding.weight", "head.weight"}


class Counted(nn.Module):
    """A buffer is written in the middle and read before; another one is written at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("last", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        x = self.layers[1](x + self.seen)
        self.seen.add_(1)
        x = self.layers[2](x * 2)
        self.last.copy_(x.sum())
        return self.layers[3](x) + self.last


@pytest.mark.parametrize("decomposed", [False, True])
def test_written_buffers(decomposed: bool, tmp_path: Path) -> None:
    program = export(Counted(), (torch.ones(2, 4),))
    if decomposed:
        program = program.run_decompositions({})
    chained(program, tmp_path / "out", 3, runs=3)
    for name in ("seen", "last"):
        assert [name in names for names in names_of_state(tmp_path / "out")].count(True) == 1


class Assigned(nn.Module):
    """Buffers that are assigned: export copies their final values at the end of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(6))
        for name in ("steps", "mean", "before"):
            self.register_buffer(name, torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        for number, layer in enumerate(self.layers):
            x = layer(x).tanh()
            if number == 1:
                self.mean = self.mean * 0.9 + x.mean() * 0.1
            if number == 4:
                x = x * self.before
                self.before = x.sum() + 1
        return x


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("n", [2, 4])
def test_assigned_buffers(n: int, decomposed: bool, tmp_path: Path) -> None:
    program = export(Assigned(), (torch.rand(2, 4),))
    if decomposed:
        program = program.run_decompositions({})
    manifest = chained(program, tmp_path / "out", n, runs=3)
    assert not manifest["shared"]
    for name in ("steps", "mean", "before"):
        assert [name in names for names in names_of_state(tmp_path / "out")].count(True) == 1
    chained(program, tmp_path / "timed", n, runs=3, by="time")


class Written(nn.Module):
    """An input is written, in the middle."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = (x * 2).sin()
        y.add_(z)
        return (z + y).cos().tanh()


@pytest.mark.parametrize("decomposed", [False, True])
def test_written_inputs(decomposed: bool, tmp_path: Path) -> None:
    x, y = torch.ones(3), torch.ones(3)
    program = export(Written(), (x, y))
    if decomposed:
        program = program.run_decompositions({})
    save_stages(program, tmp_path / "out", 3, by="time", inputs=program.example_inputs)
    chain, whole = Chain(tmp_path / "out"), program.module()
    mine, other = y.clone(), y.clone()
    assert_same_values(chain(x, mine), whole(x, other))
    assert torch.equal(mine, other)
    assert not torch.equal(mine, y)


class Sized(nn.Module):
    """Sizes that are symbols, and one that is computed, pass between stages; so does a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        x = self.layers[0](x)
        rows = x.shape[0] + y.shape[1]
        x = self.layers[1](torch.cat((x, x)))
        x = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        return self.layers[2](x).reshape(-1) * rows, rows


def test_dynamic_shapes(tmp_path: Path) -> None:
    shapes = {"x": {0: Dim("rows", min=2, max=32)}, "y": {1: Dim("columns", max=64)}}
    inputs = (torch.randn(3, 4), torch.randn(2, 5))
    program = export(Sized(), inputs, dynamic_shapes=shapes)
    for n in (2, 5):
        chained(program, tmp_path / str(n), n)
        chain, whole = Chain(tmp_path / str(n)), program.module()
        for rows, columns in ((2, 3), (7, 9)):
            given = (torch.randn(rows, 4), torch.randn(2, columns))
            assert_same_values(chain(*given), whole(*given))


def test_the_program_stays_as_it_is(tmp_path: Path) -> None:
    program = transformer()
    before = (str(program), fxpress.graph_hash(program, include_state=True))
    save_stages(program, tmp_path / "out", 3, by="time", inputs=program.example_inputs)
    assert before == (str(program), fxpress.graph_hash(program, include_state=True))


class Items(nn.Module):
    """Nothing but the parts of one list."""

    def forward(self, x: Tensor) -> Any:
        return x.unbind(0)


def test_what_is_refused(tmp_path: Path) -> None:
    program, folder = transformer(), tmp_path / "out"
    small = export(Items(), (torch.ones(3, 2),))
    full = tmp_path / "full"
    full.mkdir()
    (full / "file").touch()
    for subject, target, n, options, said in (
        (program, folder, 0, {}, "cannot make 0 stages"),
        (program, folder, 1000, {}, "cannot make 1000 stages: the program has"),
        (program, folder, 2, {"by": "time"}, "no inputs to measure"),
        (program, folder, 2, {"by": "time", "inputs": ((), {})}, "structure"),
        (program, folder, 2, {"by": "weight"}, "parameters, bytes"),
        (program, folder, 43, {"by": "module"}, "the program can be cut at"),
        (small, folder, 2, {}, "have the weight 0"),
        (
            small,
            folder,
            2,
            {"by": "time", "inputs": small.example_inputs},
            "unbind is neither a tensor nor an integer",
        ),
        (program, full, 2, {}, "exists already"),
    ):
        with pytest.raises(StageError, match=said):
            save_stages(subject, target, n, **options)
    assert sorted(tmp_path.iterdir()) == [full]


def test_an_archive_that_is_there_is_replaced(tmp_path: Path) -> None:
    """An existing archive is replaced, as by torch.export.save; a folder is not."""
    program, path = transformer(), tmp_path / "stages.pt2"
    for stages in (2, 3):
        save_stages(program, path, stages)
        found = torch.export.pt2_archive._package.load_pt2(str(path)).exported_programs
        assert set(found) == {f"stage_{number}" for number in range(stages)}
    assert list(tmp_path.iterdir()) == [path]


def test_a_symbolic_link_to_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    program = export(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), (torch.ones(1, 2),))
    save_stages(program, tmp_path / "link", 2)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "manifest.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


def test_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []

    write = save.save

    def fail(program: ExportedProgram, path: Path, **_: Any) -> None:
        if written:
            raise OSError(28, "No space left on device")
        written.append(path)
        write(program, path)

    monkeypatch.setattr(save, "save", fail)
    with pytest.raises(OSError, match="No space"):
        save_stages(transformer(), tmp_path / "out", 2)
    assert written
    assert list(tmp_path.iterdir()) == []


def test_all_files_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    save_stages(transformer(), tmp_path / "out", 2)
    convert_weights(tmp_path / "out", tmp_path / "made", program=tmp_path / "out", form="stages")
    for folder in (tmp_path, tmp_path / "out", tmp_path / "made"):
        assert {path.stat().st_ino for path in (folder, *folder.iterdir())} <= synced


class Idle(nn.Module):
    """Some of its state is not used: of the root, of a layer, and of a layer that is not called."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.BatchNorm1d(4)  # in eval, it does not use num_batches_tracked
        self.never = nn.Linear(4, 4)
        self.other = self.never.weight
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(self.norm(x))


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_state_that_nothing_uses(stages: int, tmp_path: Path) -> None:
    model = Idle().eval()
    program = export(model, (torch.ones(2, 4),))
    chained(program, tmp_path / "out", stages)
    states = [fxpress.load(tmp_path / "out" / f"stage_{n}.pt2").state_dict for n in range(stages)]
    assert sum(map(len, states)) == len(model.state_dict())
    model.load_state_dict({name: value for state in states for name, value in state.items()})
    assert {"seen", "norm.num_batches_tracked"} <= states[-1].keys()  # buffers behind parameters
    elements = sum(each.numel() for each in (*model.parameters(), *model.buffers()))
    assert sum(plan(program, stages).weights) == elements


class SizesBeside(nn.Module):
    """Two inputs with different sizes: only the first stage needs one, only the last the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.first(x).sum(0)
        return self.second(y) * x


def test_a_stage_has_the_symbols_that_it_uses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sizes = {"x": {0: Dim("a", max=99)}, "y": {0: Dim("b", min=2, max=77)}}
    program = export(SizesBeside(), (torch.rand(3, 4), torch.rand(5, 4)), dynamic_shapes=sizes)
    chained(program, tmp_path / "stages", 2)
    stages = [fxpress.load(tmp_path / "stages" / f"stage_{number}.pt2") for number in range(2)]
    found = [list(each.range_constraints.values()) for each in stages]
    assert sorted(found, key=str) == sorted(
        [[limits] for limits in program.range_constraints.values()], key=str
    )
    assert "did not appear" not in caplog.text

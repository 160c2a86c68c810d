"""Stages check the guards of the program, as `ExportedProgram.module` does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.export import Dim, ExportedProgram, export

from fxpress import pipeline
from fxpress._distributed.stages.documents import sealed
from fxpress._distributed.stages.guards import inputs_in
from fxpress._distributed.stages.manifest import read_manifest

ANY = {0: Dim.DYNAMIC}


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)


class Product(Base):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        pooled = x.sum(0) if x.shape[0] * y.shape[0] > 5 else x.mean(0)
        return self.last(self.first(pooled + y.sum(0)))


class Unused(Base):
    """A size decides a branch, and no operation uses the tensor."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.last(self.first(x))
        return x.sum(0) if y.shape[0] > 5 else x.mean(0)


class Apart(Base):
    """The inputs of the guard are in different stages."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.first(x)
        x = x.sum(0) if x.shape[0] > y.shape[0] else x.mean(0)
        return self.last(x) + y.sum(0)


class Late(Base):
    """The inputs of the guard are in the last stage."""

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        x = self.last(self.first(x))
        return x + (y.sum(0) if y.shape[0] == 2 * z.shape[0] else y.mean(0)) + z.sum(0)


class Constant(Base):
    def forward(self, x: Tensor, flag: bool, mode: str) -> Tensor:
        x = self.first(x)
        return self.last(x.relu() if flag and mode == "a" else x)


class Number(Base):
    """A later stage receives a number; torch infers shapes with another number."""

    def forward(self, x: Tensor, n: int) -> Tensor:
        h = self.first(x)
        return self.last(h) * n if n > 2 * x.shape[1] else self.last(h)


class Nested(Base):
    def forward(self, both: dict[str, list[Tensor]], *rest: Tensor, k: Tensor) -> Tensor:
        x = both["b"][1]
        x = x.sum(0) if x.shape[0] % 3 == rest[1].shape[0] % 2 else x.mean(0)
        x = self.last(self.first(x + rest[0])) + rest[1].sum(0)
        return x + k.sum(0) if k.shape[0] < both["b"][0].shape[0] else x


def rows(n: int) -> Tensor:
    return torch.arange(4.0 * n).view(n, 4)


Call = tuple[tuple[Any, ...], dict[str, Any]]


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def nested(a: int, b: int, c: int, k: int) -> Call:
    return call({"b": [rows(a), rows(b)]}, rows(1)[0], rows(c), k=rows(k))


# The model, its dynamic shapes, the inputs of the export, inputs that fit, and ones that do not.
CASES: list[tuple[Callable[[], nn.Module], Any, Call, list[Call], list[Call]]] = [
    (
        Product,
        {"x": ANY, "y": ANY},
        call(rows(4), rows(3)),
        [call(rows(2), rows(3)), call(rows(9), rows(2))],
        [call(rows(2), rows(2)), call(rows(1), rows(2))],
    ),
    (
        Unused,
        {"x": ANY, "y": ANY},
        call(rows(4), rows(7)),
        [call(rows(4), rows(6))],
        [call(rows(4), rows(5)), call(rows(9), rows(2))],
    ),
    (
        Apart,
        {"x": ANY, "y": ANY},
        call(rows(4), rows(3)),
        [call(rows(9), rows(8))],
        [call(rows(3), rows(3)), call(rows(4), rows(5))],
    ),
    (
        Late,
        {"x": None, "y": ANY, "z": ANY},
        call(rows(4), rows(7), rows(3)),
        [call(rows(4), rows(7), rows(2))],
        [call(rows(4), rows(8), rows(4))],
    ),
    (
        Constant,
        {"x": ANY, "flag": None, "mode": None},
        call(rows(4), True, "a"),
        [call(rows(2), True, "a")],
        [call(rows(2), False, "a"), call(rows(2), True, "b")],
    ),
    (
        Number,
        {"x": {1: None}, "n": Dim.DYNAMIC},
        call(rows(4), 9),
        [call(rows(4), 10)],
        [call(rows(4), 8)],
    ),
    (
        Nested,
        {
            "both": {"b": [ANY, ANY]},
            "rest": (None, ANY),
            "k": ANY,
        },
        nested(5, 4, 3, 4),
        [nested(9, 7, 5, 2)],
        [nested(9, 6, 5, 2), nested(5, 4, 3, 5)],
    ),
]
every = pytest.mark.parametrize("case", CASES, ids=lambda case: str(case[0].__name__))


def exported(case: Any, strict: bool = False) -> ExportedProgram:
    torch.manual_seed(0)
    model, shapes, (args, kwargs), _, _ = case
    return export(model(), args, kwargs, dynamic_shapes=shapes, strict=strict)


def run(path: Path, given: Call, **options: Any) -> Any:
    """Return the results of the stages, run one after another."""
    args, kwargs = given
    (count,) = {pipeline.load_stage(path, 0).count}
    for number in range(count):
        stage = pipeline.load_stage(path, number, **options)
        made = stage.module(*args, **kwargs)
        args, kwargs = (made if isinstance(made, tuple) else (made,)), {}
    return stage.results(made)


@every
@pytest.mark.parametrize(("count", "strict"), [(1, False), (2, False), (2, True)])
def test_stages_raise_where_the_program_does(
    case: Any, count: int, strict: bool, tmp_path: Path
) -> None:
    program = exported(case, strict)
    manifest = pipeline.save_stages(program, tmp_path / "stages", count)
    assert json.loads((tmp_path / "stages" / "manifest.json").read_text()) == manifest
    whole = program.module()
    for args, kwargs in case[3]:
        assert torch.equal(run(tmp_path / "stages", (args, kwargs)), whole(*args, **kwargs))
    for args, kwargs in case[4]:
        with pytest.raises(AssertionError, match="Guard failed"):
            whole(*args, **kwargs)
        # The stage's own program knows a range of an input that it takes.
        with pytest.raises((AssertionError, RuntimeError), match=r"Guard failed|Expected input"):
            run(tmp_path / "stages", (args, kwargs))


@pytest.mark.parametrize("given", CASES[0][4])
def test_without_guards(given: Call, tmp_path: Path) -> None:
    pipeline.save_stages(exported(CASES[0]), tmp_path / "stages", 2)
    args, kwargs = given
    traced = exported(CASES[0]).module(check_guards=False)(*args, **kwargs)
    assert torch.equal(run(tmp_path / "stages", given, check_guards=False), traced)


@pytest.mark.parametrize(
    ("case", "first", "last", "others"),
    [
        (CASES[0], ["x y"], [], []),
        (CASES[1], [], [], ["y", "y", "y"]),  # its two sizes by the metadata, and the branch
        (CASES[2], [], [], ["x y"]),
        (CASES[3], [], ["y z"], []),
        (CASES[4], [], [], ["flag", "mode"]),
    ],
)
def test_where_each_guard_is_checked(
    case: Any, first: list[str], last: list[str], others: list[str], tmp_path: Path
) -> None:
    """By the first stage whose program has all inputs of it; the others are listed."""
    manifest = pipeline.save_stages(exported(case), tmp_path / "stages", 2)
    types = {each["name"]: each["type"] for each in manifest["inputs"]}
    found = [*(stage["guards"] for stage in manifest["stages"]), manifest["unchecked_guards"]]
    names = [[" ".join(sorted(inputs_in(each, types) or ())) for each in part] for part in found]
    assert names == [first, last, others]


def manifest_with(path: Path, guards: list[str], others: list[str]) -> bytes:
    said = json.loads((path / "manifest.json").read_text())
    said["stages"][0]["guards"], said["unchecked_guards"] = guards, others
    del said["digest"]
    return json.dumps(sealed(said)).encode()


HOSTILE = [
    "__import__('os').system('true')",
    "L['x'].__class__",
    "L['x'].size()[0] == 4 or print(1)",
    "L['mode'] * 9 ** 9 == 'a'",
    "L['nothing'].size()[0] == 4",
    "L['self'].weight.size()[0] == 4",
    "L == 4",
]


@pytest.mark.parametrize("guard", HOSTILE)
def test_guards_of_a_manifest_that_are_none(guard: str, tmp_path: Path) -> None:
    """In `guards` of a stage they are refused; in `unchecked_guards` they are not run."""
    pipeline.save_stages(exported(CASES[4]), tmp_path / "stages", 2)
    with pytest.raises(pipeline.StageError, match="is not a guard on inputs"):
        read_manifest(manifest_with(tmp_path / "stages", [guard], []))
    other = manifest_with(tmp_path / "stages", [], [guard])
    (tmp_path / "stages" / "manifest.json").write_bytes(other)
    args, kwargs = CASES[4][3][0]
    run(tmp_path / "stages", (args, kwargs))


def test_inputs_of_guards() -> None:
    types = {"x": "tensor", "n": "int", "mode": "str"}
    assert inputs_in("L['x'].size()[0] > L['n']", types) == {"x", "n"}
    assert inputs_in("L['mode'] == 'a'", types) == {"mode"}
    assert inputs_in("2 > 1", types) == set()


def test_a_manifest_without_guards(tmp_path: Path) -> None:
    """Older ones have no such fields."""
    pipeline.save_stages(exported(CASES[0]), tmp_path / "stages", 2)
    said = json.loads((tmp_path / "stages" / "manifest.json").read_text())
    for stage in said["stages"]:
        del stage["guards"]
    del said["unchecked_guards"], said["digest"]
    made = read_manifest(json.dumps(sealed(said)).encode())
    assert [stage.guards for stage in made.stages] == [(), ()]
    assert made.unchecked_guards == ()


class Halves(Base):
    """A number is an input of the last stage alone, and its guard is there."""

    def forward(self, x: Tensor, *, n: int) -> Tensor:
        x = self.last(self.first(x))
        return x * n if n * n > 2 * n + 5 else x + n


def test_shapes_are_inferred_without_guards(tmp_path: Path) -> None:
    program = export(
        Halves(), (rows(2),), {"n": 9}, dynamic_shapes={"x": ANY, "n": Dim.DYNAMIC}, strict=False
    )
    manifest = pipeline.save_stages(program, tmp_path / "stages", 2)
    assert [len(stage["guards"]) for stage in manifest["stages"]] == [0, 1]
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        stages = pipeline.load_stages(tmp_path / "stages", "LoopedBFS")
        schedule = pipeline.build_schedule("LoopedBFS", stages, 2, timeout=20)
        found = schedule.eval(rows(4), n=8)
        assert torch.equal(found, torch.cat([program.module()(x, n=8) for x in rows(4).chunk(2)]))
        text = r"rank 0 \(stages 0, 1\): AssertionError: Guard failed"
        with pytest.raises(pipeline.PipelineError, match=text):
            schedule.eval(rows(4), n=2)
    finally:
        distributed.destroy_process_group()

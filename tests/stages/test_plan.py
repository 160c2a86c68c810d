"""Plans: their texts, the programs that they are for, limits, profiles, shared parameters."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

import fxpress
from fxpress import partition
from fxpress._base import pictures
from fxpress.pipeline import (
    OperationTimes,
    Plan,
    StageError,
    check,
    measure_times,
    plan,
    save_stages,
    to_pipe,
)
from fxpress.split_module import split_module
from tests.support.made_programs import Maker, aten, layers
from tests.support.staged import Chain, assert_same_values


class Model(nn.Module):
    """Layers, and a weight that the first and the last operation use."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(x)


def model(width: int = 8) -> ExportedProgram:
    torch.manual_seed(0)
    return export(Model(width).eval(), (torch.arange(4),))


def test_save_stages_takes_a_plan(tmp_path: Path) -> None:
    program = model()
    made = plan(program, 3, "bytes")
    manifest = save_stages(program, tmp_path / "out", made)
    assert Plan.from_json(json.dumps(manifest["plan"])) == made
    assert manifest["plan"]["digest"] == made.digest()
    operations = [stage["operations"] for stage in manifest["stages"]]
    assert operations == [
        end - start for start, end in zip((0, *made.ends), made.ends, strict=False)
    ]
    for number, stage in enumerate(manifest["stages"]):
        assert made.state_bytes[number] == stage["state_bytes"]
    x = torch.arange(4)
    assert_same_values(Chain(tmp_path / "out")(x), program.module()(x))
    with pytest.raises(StageError, match="another program"):
        save_stages(model(12), tmp_path / "other", made)
    assert not (tmp_path / "other").exists()


def test_text() -> None:
    made = plan(model(), 3)
    text = made.to_json()
    assert Plan.from_json(text) == made
    content = json.loads(text)
    digest = content.pop("digest")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert digest == made.digest() == hashlib.sha256(canonical.encode()).hexdigest()
    assert dataclasses.replace(made, by="bytes").digest() != digest


def variants(value: Any) -> list[Any]:
    """Return other values for a field: of other types, longer, shorter, larger."""
    found: list[Any] = [None, -1, 1.5, True, "", [], {}, [[]], [-1], [None], 10**30]
    if isinstance(value, int):
        found += [value + 1, float(value)]
    if isinstance(value, str):
        found += [value + "0", value[:-1], "\x1b[31m"]
    if isinstance(value, list):
        found += [value[:-1], [*value, 0], [*value, *value], value[::-1]]
    return [each for each in found if each != value or type(each) is not type(value)]


@pytest.mark.parametrize("kind", [Plan, OperationTimes])
def test_damaged_texts(kind: Any) -> None:
    program = model()
    made = plan(program, 3) if kind is Plan else measure_times(program, program.example_inputs)
    content = json.loads(made.to_json())
    other = json.loads(
        (
            measure_times(program, program.example_inputs) if kind is Plan else plan(program, 3)
        ).to_json()
    )
    texts = ["", "{", "null", "7", "[]", "{}", "[" * 100_000, '{"format": []}', json.dumps(other)]
    texts += [made.to_json()[:-9], "NaN", "9" * 100_000, "\ud800"]
    for name in content:
        texts.append(json.dumps({key: value for key, value in content.items() if key != name}))
        texts += [json.dumps({**content, name: each}) for each in variants(content[name])]
    texts.append(json.dumps({**content, "more": 1}))
    for at in range(len(content.get("shared", []))):
        for name, value in content["shared"][at].items():
            for each in variants(value):
                shared = [{**content["shared"][at], name: each}]
                texts.append(json.dumps({**content, "shared": shared}))
    for text in texts:
        with pytest.raises(StageError) as caught:
            kind.from_json(text)
        assert len(str(caught.value).splitlines()) == 1
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 200


def test_another_program() -> None:
    program = model()
    made = plan(program, 3)
    check(made, program)
    check(made, model())
    with pytest.raises(StageError, match="graph_hash differs"):
        check(made, model(12))


class Counted(nn.Module):
    """A buffer is read, and written later."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        x = (x + self.seen).sin()
        self.seen.add_(1)
        return x.cos().tanh()


def test_a_plan_that_cuts_where_no_cut_may_be() -> None:
    program = export(Counted(), (torch.ones(4),))
    made = plan(program, 2, "bytes")
    assert made.ends[0] >= 3
    for ends in ((1, made.operations), (2, made.operations)):
        with pytest.raises(StageError, match="cannot be cut"):
            check(dataclasses.replace(made, ends=ends), program)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((12, 12), "stage 1 of the plan does not have operations"),
        ((3, 3, 12), "stage 1 of the plan does not have operations"),
        ((0, 12), "stage 0 of the plan does not have operations"),
        ((3, 2, 12), "stage 1 of the plan does not have operations"),
        ((), "the plan does not have stages"),
        ((3,), "the last stage of the plan ends at operation 3, expected 12"),
        ((2, 17), "the last stage of the plan ends at operation 17, expected 12"),
        ((2.0, 12), "ends is invalid"),
        ((-1, 12), "ends is invalid"),
        ((True, 12), "ends is invalid"),
        ((12,), "weights is invalid"),  # there are two
        (None, "has the wrong type"),
        (7, "has the wrong type"),
    ],
)
def test_ends_that_no_plan_has(ends: Any, said: str, tmp_path: Path) -> None:
    program = layers(4)
    made = plan(program, 2)
    assert made.operations == 12
    changed = dataclasses.replace(made, ends=ends)
    for use in (
        lambda: check(changed, program),
        lambda: save_stages(program, tmp_path / "stages", changed),
        lambda: save_stages(program, tmp_path / "stages.pt2", changed),
        lambda: to_pipe(program, changed),
    ):
        with pytest.raises(StageError, match=said) as caught:
            use()
        assert len(str(caught.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_shared_state_that_no_plan_has() -> None:
    program = model()
    made = plan(program, 3)
    for shared in ((dataclasses.replace(made.shared[0], stages=(0, 3)),), (None,), None):
        with pytest.raises(StageError):
            check(dataclasses.replace(made, shared=shared), program)


def test_limits_of_memory() -> None:
    program = layers(12)
    free = plan(program, 3)
    most = max(free.memory)
    assert plan(program, 3, memory=most).ends == free.ends
    with pytest.raises(StageError, match="the lowest possible limit is") as caught:
        plan(program, 3, memory=1)
    least = int(str(caught.value).rpartition(" ")[2].replace(",", ""))
    assert max(plan(program, 3, memory=least).memory) <= least
    with pytest.raises(StageError, match=f"is {least:,}$"):
        plan(program, 3, memory=least - 1)
    # The first may have little, so that the others take more than equal shares.
    layer = free.state_bytes[0] // 4
    limits = [free.memory[0] - 3 * layer, most + 4 * layer, most + 4 * layer]
    made = plan(program, 3, memory=limits)
    assert all(held <= limit for held, limit in zip(made.memory, limits, strict=True))
    assert made.state_bytes[0] == layer
    for limits, said in (
        ([1, 10**6, 10**6], "stage 0 may use 1 bytes, but the first operation of the stage"),
        ([10**6, 10**6, 1], "stage 2 may use 1 bytes, but any operation"),
        ([layer * 3, layer * 3, layer * 3 + 1], "stage 2 may use .* the rest of the program"),
    ):
        with pytest.raises(StageError, match=said):
            plan(program, 3, memory=limits)


class Viewed(nn.Module):
    """A view needs no memory; a branch creates a new value."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.sin().reshape(2, 2)
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


def test_what_is_alive() -> None:
    """Of tensors of four floats, 16 bytes each."""
    program = export(Counted(), (torch.ones(4),)).run_decompositions({})
    assert [str(node.target) for node in program.graph.nodes if node.op == "call_function"] == [
        *("aten.add.Tensor", "aten.sin.default", "aten.add.Tensor", "aten.cos.default"),
        "aten.tanh.default",
    ]
    made = plan(program, 1, "bytes")
    assert made.state_bytes == (16,)
    assert made.activation_bytes == (48,)  # the new value of the buffer, and two others
    program = export(Viewed(), (torch.ones(4),))
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    made = plan(program, 1, "time", profile=even_profile(program))
    # Of sin and reshape one, of sum and gt 4 bytes and 1, of cond and getitem one.
    assert nodes[1].name == "reshape"
    assert made.activation_bytes == (16 + 1 + 16,)


def even_profile(program: ExportedProgram) -> OperationTimes:
    count = sum(node.op == "call_function" for node in program.graph.nodes)
    return OperationTimes(fxpress.graph_hash(program), (1,) * count)


def test_slack_passes_fewer_bytes() -> None:
    """In the middle eight numbers pass, and one layer earlier only one does."""
    maker = Maker([8] * 40, [8])
    value = maker.inputs[0]
    for number, parameter in enumerate(maker.parameters):
        if number == 19:
            value = maker.call(aten.sum.default, value)
        value = maker.call(aten.mul.Tensor, value, parameter)
    program = maker.program([value])
    even, cheap = plan(program, 2, slack=0), plan(program, 2, slack=0.05)
    assert (even.weights, even.crossing_bytes) == ((160, 160), (32,))
    assert (cheap.weights, cheap.crossing_bytes) == ((152, 168), (4,))
    assert plan(program, 2, slack=0.04) == even


def test_shared_parameters() -> None:
    program = model()
    (shared,) = plan(program, 3).shared
    assert shared.stages == (0, 2)
    assert shared.is_parameter
    assert shared.names[0] in ("embedding.weight", "head.weight")
    with pytest.raises(StageError, match=r"weight is used"):
        plan(program, 2, shared="together")
    maker = Maker([8, 8, 8, 8], [8])
    value = maker.inputs[0]
    for parameter in (0, 1, 2, 0, 3):
        value = maker.call(aten.mul.Tensor, value, maker.parameters[parameter])
    program = maker.program([value])
    assert plan(program, 2).ends == (2, 5)
    together = plan(program, 2, shared="together")
    assert together.ends == (4, 5)
    assert together.shared == ()


def test_profile() -> None:
    program = model()
    times = measure_times(program, program.example_inputs)
    assert OperationTimes.from_json(times.to_json()) == times
    made = plan(program, 2, "time", profile=times)
    assert made == plan(model(), 2, "time", profile=times)
    assert sum(made.weights) == sum(times.nanoseconds)
    # The times are shared out, whatever they are.
    even = dataclasses.replace(times, nanoseconds=(1,) * made.operations)
    assert max(plan(program, 2, "time", profile=even).weights) == -(-made.operations // 2)
    with pytest.raises(StageError, match="another program"):
        plan(model(12), 2, "time", profile=times)
    with pytest.raises(StageError, match="another program"):
        plan(program, 2, "time", profile=dataclasses.replace(times, nanoseconds=(1,)))
    with pytest.raises(StageError, match="there are no inputs to measure times with"):
        measure_times(program, None)


def test_symbols_have_the_sizes_of_the_example() -> None:
    rows = Dim("rows", max=64)
    program = export(
        nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (torch.ones(3, 4),), dynamic_shapes=({0: rows},)
    )
    made = plan(program, 2)
    assert made.crossing_bytes == (3 * 4 * 4,)
    assert made.activation_bytes == (2 * 48, 2 * 48)


def test_what_is_refused() -> None:
    program = layers(4)
    for stages, options, said in (
        (0, {}, "cannot make 0 stages"),
        (True, {}, "or an int, got a bool"),
        (13, {}, "cannot make 13 stages: the program has 12 operations"),
        (2, {"by": "colour"}, "got 'colour'"),
        (2, {"by": "time"}, "there are no inputs to measure times with"),
        (2, {"slack": -0.1}, "expected `slack`"),
        (2, {"slack": float("nan")}, "expected `slack`"),
        (2, {"shared": "no"}, "list or together"),
        (2, {"memory": -1}, "expected memory limits in bytes"),
        (2, {"memory": 1.5}, "expected memory limits in bytes"),
        (2, {"memory": [1]}, "expected 2 memory limits, one for each stage, got 1"),
    ):
        with pytest.raises(StageError, match=said) as caught:
            plan(program, stages, **options)
        assert len(str(caught.value).splitlines()) == 1


def test_nothing_is_drawn_without_a_renderer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python's package `graphviz` may be there alone, without a program."""
    monkeypatch.setattr(pictures, "_PORT", "no-such-package")
    monkeypatch.setenv("PATH", str(tmp_path))
    program = layers(4)
    made = save_stages(program, tmp_path / "stages", 2)
    assert made["picture"] is None
    assert not list((tmp_path / "stages").glob("*.svg"))
    split = split_module(program.graph_module, None, lambda _: 0)
    with pytest.raises(RuntimeError, match="needs the program dot"):
        partition.draw(split, format="svg")


def test_report_and_picture() -> None:
    program = model()
    made = plan(program, 3)
    lines = made.report().splitlines()
    assert len(lines) == 5
    assert [int(line.split()[0]) for line in lines[1:4]] == [0, 1, 2]
    assert "share the parameter" in lines[4]
    hostile = dataclasses.replace(made.shared[0], names=("a\x1b[2J\nb",))
    assert dataclasses.replace(made, shared=(hostile,)).report().replace("\n", "").isprintable()
    picture = made.picture(program)
    assert picture is not None
    assert picture.startswith("<?xml")
    with pytest.raises(StageError, match="another program"):
        made.picture(layers(3))


SCRIPT = """
import sys, torch, fxpress
from fxpress.pipeline import plan
torch.set_num_threads(int(sys.argv[2]))
program = fxpress.load(sys.argv[1])
for by in ("parameters", "bytes", "flops", "module"):
    print(plan(program, 3, by).to_json())
"""


@pytest.mark.slow("two processes that import torch")
def test_processes_have_equal_plans(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    fxpress.save(model(), path)
    texts = []
    for seed, threads in (("1", "1"), ("2", "2")):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        arguments = [sys.executable, "-W", "ignore", "-c", SCRIPT, str(path), threads]
        texts.append(subprocess.run(arguments, env=env, capture_output=True, check=True).stdout)
    assert texts[0] == texts[1]


@pytest.mark.deep("a program of 24,000 nodes")
def test_many_operations() -> None:
    """The time to plan an operation is about the same among 24,000 as among 2,400."""

    def seconds(program: ExportedProgram, **options: Any) -> tuple[float, Plan]:
        start = time.process_time()
        made = plan(program, 64, **options)
        return time.process_time() - start, made

    few, many = layers(800), layers(8_000)
    anywhere = {"slack": 100}  # each cut may be anywhere
    least = min(seconds(few)[0] for _ in range(3))
    least_wide = min(seconds(few, **anywhere)[0] for _ in range(3))
    took, made = seconds(many)
    took_wide, wide = seconds(many, **anywhere)
    assert took < 25 * least
    assert took_wide < 25 * least_wide
    assert made.operations == 24_000
    assert max(made.weights) <= 1.05 * 8 * -(-8_000 // 64)
    assert sum(wide.crossing_bytes) <= sum(made.crossing_bytes)

"""Compare serialization, deserialization and the canonical form with torch, by time and memory."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._export.serde import schema
from torch._export.serde import serialize as _torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram

import memory
import programs
from figures import OVER_CREATION, Figure, Goal, growth_over_floor
from floor import creation_times
from fxpress import _native, graph_hash
from fxpress._files.serde.schema import CLASSES, SCHEMA
from fxpress._files.serde.values import Values
from fxpress.serialize import (
    ExportedProgramSerializer,
    SerializedArtifact,
    canonicalize,
    deserialize,
    serialize,
)
from programs import Program
from timing import Action, Ratio, interleaved, per_node, ratio, stopwatch

LARGE = 500  # layers of a transformer of 18,000 nodes
WRITING = Goal(150, more_is_better=True, aim=200)
READING = Goal(40, more_is_better=True, aim=60)
CANONICAL = Goal(40, more_is_better=True)
OBJECTS = Goal(20, more_is_better=True)
HASH = Goal(300, more_is_better=True)
PEAK = Goal(0.2, of_ratio=False)

FAKES = "only creating the fake tensors of the result of `deserialize`"
NODES = "only creating the nodes of the result of `deserialize`"

# The bytes of the program alone; torch.save writes state, constants and inputs.
ALONE: dict[str, Any] = {
    "serialize_state_dict": False,
    "serialize_constants": False,
    "serialize_example_inputs": False,
}


def measure(layers: int, rounds: int, *, large: bool) -> list[Figure]:
    """Measure the default model with `layers` layers; with `large`, a model of 18,000 nodes too."""
    figures = measure_program(programs.transformer(layers), rounds)
    if large:
        figures += measure_program(programs.transformer(LARGE), 2)
    return figures


def _case(
    label: str, ways: tuple[Any, Any], argument: Any, goal: Goal | None = None, **options: Any
) -> tuple[str, Any, Any, Goal | None]:
    ours, theirs = (functools.partial(way, argument, **options) for way in ways)
    return label, ours, theirs, goal


def _torch_objects(program: ExportedProgram, **options: Any) -> Any:
    return _torch.ExportedProgramSerializer().serialize(program, **options)


def _torch_canonical(program: ExportedProgram) -> Any:
    """Return the canonical form of torch, by which it compares programs."""
    return _torch.canonicalize(_torch_objects(program, **ALONE).exported_program)


def measure_program(program: Program, rounds: int) -> list[Figure]:
    """Assert that the results are equal, then measure the times."""
    exported = program.program
    ours, theirs = serialize(exported), _torch.serialize(exported)
    assert ours == theirs
    read, read_by_torch = deserialize(ours), _torch.deserialize(ours)
    assert str(read) == str(read_by_torch)
    # The state is a dict, so that the time of torch.load is not measured.
    alone = SerializedArtifact(ours.exported_program, exported.state_dict, exported.constants, b"")
    # Each side has its own objects: a deep copy by torch creates the `__dict__` of each object.
    stored, stored_for_torch = (
        _torch._bytes_to_dataclass(schema.ExportedProgram, ours.exported_program) for _ in range(2)
    )
    assert canonicalize(stored) == _torch.canonicalize(stored_for_torch)
    writers, readers = (serialize, _torch.serialize), (deserialize, _torch.deserialize)
    objects: Any = (ExportedProgramSerializer().serialize, _torch_objects)
    assert objects[0](exported, **ALONE) == objects[1](exported, **ALONE)
    assert graph_hash(exported) == graph_hash(read) == graph_hash(read_by_torch)
    cases: list[tuple[str, Any, Any, Goal | None]] = [
        _case("`serialize` without state and inputs", writers, exported, WRITING, **ALONE),
        _case("`serialize` with state and inputs", writers, exported),
        _case("`deserialize`, with the state as a dict of tensors", readers, alone, READING),
        _case("`deserialize` with state and inputs", readers, ours),
        (
            "`canonicalize` of objects of torch's schema",
            functools.partial(canonicalize, stored),
            functools.partial(_torch.canonicalize, stored_for_torch),
            CANONICAL,
        ),
        _case("`ExportedProgramSerializer`", objects, exported, OBJECTS, **ALONE),
        _case(
            "`graph_hash`, compared with torch's `ExportedProgramSerializer` and `canonicalize`",
            (graph_hash, _torch_canonical),
            exported,
            HASH,
        ),
    ]
    figures = []
    for label, our_way, torchs_way, goal in cases:
        seconds = interleaved({"ours": stopwatch(our_way), "torch": stopwatch(torchs_way)}, rounds)
        figures.append(
            Figure(
                program.name,
                label,
                "us/node",
                per_node(seconds["ours"], program.nodes),
                per_node(seconds["torch"], program.nodes),
                ratio(seconds["torch"], seconds["ours"]),
                rounds,
                goal,
                "" if goal in (None, OBJECTS) else label.split("`")[1],
            )
        )
    return figures


def measure_growth(sizes: list[int], rounds: int) -> list[Figure]:
    """Measure the memory and time of hand-built programs; compare the largest with the smallest."""
    ratios: dict[str, dict[int, Ratio]] = {}
    beyond = None
    for size in sizes:
        exported = programs.hand_built(size).program
        alone = functools.partial(serialize, exported, **ALONE)
        artifact, needed = memory.measure(alone)
        if size == min(sizes):  # torch needs a quarter of an hour for the largest
            assert artifact == _torch.serialize(exported, **ALONE)
        if needed is not None:
            beyond = needed.beyond / len(artifact.exported_program)
        stored = SerializedArtifact(artifact.exported_program, exported.state_dict, {}, b"")
        seconds = interleaved(
            {
                "serialize": stopwatch(alone),
                "deserialize": stopwatch(functools.partial(deserialize, stored)),
                "graph_hash": stopwatch(functools.partial(graph_hash, exported)),
                "floor": _floor(exported),
            },
            rounds,
        )
        floor = seconds.pop("floor")
        for what, times in seconds.items():
            ratios.setdefault(what, {})[size] = ratio(times, floor)
    figures = [growth_over_floor(f"`{what}`", by_size, rounds) for what, by_size in ratios.items()]
    if beyond is not None:
        name = f"hand-built graph of {sizes[-1]:,} nodes"
        what = "peak memory of `serialize` beyond its bytes, for each of these bytes"
        figures.append(Figure(name, what, "bytes/byte", beyond, goal=PEAK))
    return figures


def _floor(exported: ExportedProgram) -> Action:
    """Return an action that times only creating the nodes, from known parts."""
    return lambda: creation_times([exported.graph_module], 1)[0]


def measure_phases(program: Program, rounds: int) -> list[Figure]:
    """Measure the phases, compared with the time for only creating the resulting objects."""
    exported = program.program
    written = serialize(exported, **ALONE).exported_program
    stored = SerializedArtifact(written, exported.state_dict, exported.constants, b"")
    document = SCHEMA.read(written, "ExportedProgram")

    def read() -> object:
        return SCHEMA.read(written, "ExportedProgram")

    def decode() -> object:
        return _native.GraphDecoder(CLASSES, Values({}), {}).program(document)

    fakes = [
        value
        for value in (node.meta.get("val") for node in deserialize(stored).graph.nodes)
        if isinstance(value, FakeTensor)
    ]

    def create_fakes() -> object:
        return [_new_fake(value) for value in fakes]

    seconds = interleaved(
        {
            "serialize": stopwatch(functools.partial(serialize, exported, **ALONE)),
            "deserialize": stopwatch(functools.partial(deserialize, stored)),
            "part of `deserialize`: reading the JSON": stopwatch(read),
            "part of `deserialize`: building the graph": stopwatch(decode),
            FAKES: stopwatch(create_fakes),
            NODES: _floor(exported),
        },
        rounds,
    )
    pairs = zip(
        seconds[FAKES],
        seconds[NODES],
        strict=True,
    )
    floor = [fake + nodes for fake, nodes in pairs]
    whole = Figure(
        program.name,
        "`deserialize`, compared with only creating its nodes and fake tensors",
        "us/node",
        per_node(seconds["deserialize"], program.nodes),
        per_node(floor, program.nodes),
        ratio(seconds["deserialize"], floor),
        rounds,
        sides=OVER_CREATION,
    )
    parts = (
        Figure(program.name, what, "us/node", per_node(times, program.nodes), rounds=rounds)
        for what, times in seconds.items()
        if what not in ("serialize", "deserialize")
    )
    return [whole, *parts]


def _new_fake(value: FakeTensor) -> FakeTensor:
    """Return a copy of a fake tensor, created without FakeTensor's constructor."""
    real = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    made = torch.Tensor._make_subclass(
        FakeTensor,
        real,
        value.requires_grad,
        dispatch_device=True,
        device_for_backend_keys=value.device,
    )
    made.__dict__ = dict(vars(value))
    return made

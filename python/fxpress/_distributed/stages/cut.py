"""Find the inputs, outputs and state of each stage of a program, and state that stages share."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from itertools import pairwise

from torch.export import ExportedProgram
from torch.export.graph_signature import OutputSpec
from torch.fx import Node

from fxpress._distributed.stages.analysis import unused_state
from fxpress._distributed.stages.ends import Ends, is_mutation, state_of, storage_of
from fxpress._distributed.stages.lifetimes import Lifetimes
from fxpress._distributed.stages.planned import Shared
from fxpress._graphs.partition.callback import SplitCallback


@dataclasses.dataclass
class Stage:
    """The inputs, operations and outputs of a stage, as nodes of the entire program."""

    number: int  # the position of the stage, from 0
    operations: list[Node] = dataclasses.field(default_factory=list)
    # The placeholders of state that the stage uses, and of unused state that the stage keeps.
    state: dict[Node, None] = dataclasses.field(default_factory=dict)
    # The values that the stage uses: inputs of the program, and values of earlier stages.
    inputs: dict[Node, None] = dataclasses.field(default_factory=dict)
    # The values that the stage writes to state and inputs, with their specifications.
    mutations: list[tuple[Node, OutputSpec]] = dataclasses.field(default_factory=list)
    # The values that later stages use, or that are results of the entire program.
    outputs: dict[Node, None] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Cut:
    """A program in stages."""

    stages: list[Stage]  # in the order in which they run
    # Output of a stage -> the number of the stage.
    maker: dict[Node, int]
    ends: Ends  # the inputs, state and results of the entire program


def cut(program: ExportedProgram, stage_of: SplitCallback) -> Cut:
    """Return the stages of a program; `stage_of` is the callback of a `Plan`."""
    ends = Ends(program)
    stages = [Stage(number) for number in range(stage_of.count)]
    made = Cut(stages, {}, ends)
    for node in program.graph.nodes:
        if node not in stage_of:
            continue
        stage = stages[stage_of[node]]
        stage.operations.append(node)
        for source in node.all_input_nodes:
            _take(made, stage, source, stage_of)
    for value, spec in ends.results:
        if not isinstance(value, Node):
            continue
        if is_mutation(spec):
            stage = _home(made, value, stage_of)
            stage.mutations.append((value, spec))
            _take(made, stage, ends.target_of(spec), stage_of)
        elif value not in ends.inputs:
            stage = _home(made, value, stage_of)
            stage.outputs[value] = None
            made.maker[value] = stage.number
    for node, place in unused_state(program, ends, stage_of):
        stages[place].state[node] = None
    order = {node: number for number, node in enumerate(program.graph.nodes)}
    for stage in stages:
        for held in ("state", "inputs", "outputs"):
            setattr(stage, held, dict.fromkeys(sorted(getattr(stage, held), key=order.__getitem__)))
    return made


def _take(made: Cut, stage: Stage, source: Node, stage_of: SplitCallback) -> None:
    """Add a value to the state or to the inputs of a stage that uses it."""
    if source in made.ends.state:
        stage.state[source] = None
    elif source in made.ends.inputs:
        stage.inputs[source] = None
    elif source in stage_of and stage_of[source] != stage.number:
        stage.inputs[source] = None
        made.stages[stage_of[source]].outputs[source] = None
        made.maker[source] = stage_of[source]


def _home(made: Cut, value: Node, stage_of: SplitCallback) -> Stage:
    """Return the stage that outputs a result: its maker, else its last user, else the last one."""
    if value in stage_of:
        return made.stages[stage_of[value]]
    having = [stage for stage in made.stages if value in stage.state or value in stage.inputs]
    stage = (having or made.stages)[-1]
    _take(made, stage, value, stage_of)
    return stage


def shared_of(lifetimes: Lifetimes, ends: list[int]) -> tuple[Shared, ...]:
    """Return the state that several stages use, in order of first use."""
    bounds = pairwise([0, *ends])
    stages = _in_several(
        (key, stage)
        for stage, (start, end) in enumerate(bounds)
        for keys in lifetimes.uses[start:end]
        for key in keys
    )
    return tuple(
        Shared(tuple(lifetimes.state[key].names), tuple(using), lifetimes.state[key].is_parameter)
        for key, using in stages.items()
    )


def shared_of_cut(program: ExportedProgram, cut: Cut) -> list[tuple[list[str], list[int]]]:
    """Return, for each tensor of which several stages have copies, its names and these stages."""
    values = state_of(program)
    names: dict[Hashable, dict[str, None]] = {}
    uses: list[tuple[Hashable, int]] = []
    for stage in cut.stages:
        for node in stage.state:
            name = str(cut.ends.state[node].target)
            key = storage_of(values[name])
            names.setdefault(key, {})[name] = None
            uses.append((key, stage.number))
    return [(list(names[key]), list(using)) for key, using in _in_several(uses).items()]


def _in_several(uses: Iterable[tuple[Hashable, int]]) -> dict[Hashable, dict[int, None]]:
    """Map each storage that several stages use to these stages, in order of first use."""
    stages: dict[Hashable, dict[int, None]] = {}
    for key, stage in uses:
        stages.setdefault(key, {})[stage] = None
    return {key: using for key, using in stages.items() if len(using) > 1}

"""Find which stage checks each guard on a program's inputs, and create the checking function.

A guard is a Python expression, in which `L['name']` is the program's input `name`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch.export import ExportedProgram

from fxpress._distributed.stages.cut import Cut
from fxpress._files.serde.gate import check
from fxpress._files.serde.guards import check_arithmetic
from fxpress._graphs.unflatten.guards import Inputs, as_function, of_placeholders, of_trace_by_name
from fxpress._torch.serde import SerializeError

_INPUT = re.compile(r"\bL\['(\w+)'\]")
_NUMBERS = {"tensor", "int", "float", "bool"}  # inputs of these types are 0 while a guard is tested


class Guards(NamedTuple):
    """The guards of a program."""

    # For each stage, its guards. A guard belongs to the first stage that has the guard's inputs.
    checked: list[list[str]]
    unchecked: list[str]  # the guards for which no stage has all inputs


def guards_of(program: ExportedProgram, cut: Cut, types: Mapping[str, str]) -> Guards:
    """Return the guards of a program; `types` maps the names of its inputs to their types."""
    names = [node.name for node in cut.ends.inputs]
    having = [{node.name for node in stage.inputs} & {*names} for stage in cut.stages]
    sources = [f"L[{name!r}]" for name in names]
    found = Guards([[] for _ in cut.stages], [])
    # The metadata of a stage's inputs implies these guards, so stages do not check them again.
    own = of_placeholders(cut.ends.inputs, program.range_constraints, sources)
    for guard in (*own, *of_trace_by_name(program, names)):
        wanted = inputs_in(guard, types)
        stages = [
            number for number, known in enumerate(having) if wanted is not None and wanted <= known
        ]
        if not stages:
            found.unchecked.append(guard)
        elif guard not in own:
            found.checked[stages[0]].append(guard)
    return found


def inputs_in(guard: str, types: Mapping[str, str]) -> set[str] | None:
    """Return the names of the inputs of a guard; None for an expression that is unsafe to run."""
    names = _INPUT.findall(guard)
    if len(names) != len(re.findall(r"\bL\b", guard)) or not {*names} <= types.keys():
        return None
    examples = {name: 0 if types[name] in _NUMBERS else "" for name in names}
    try:
        check("Guard", guard, "guards")
        check_arithmetic([guard], ((), examples), None)
    except SerializeError:
        return None
    return {*names}


@functools.lru_cache(maxsize=64)
def function_of(guards: tuple[str, ...], names: tuple[str, ...]) -> Callable[..., None]:
    """Return a function of the inputs `names` that raises if a guard fails; it is not picklable."""
    return as_function([*guards], Inputs(dict.fromkeys(names)))

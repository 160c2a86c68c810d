"""Build the exported program of a stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export import graph_signature as torch_signature
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.fx import Graph, GraphModule, Node

from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.cut import Stage
from fxpress._distributed.stages.ends import Ends, value_of
from fxpress._files.tensors.copies import sharing
from fxpress._torch import serde as compat
from fxpress._torch.aten import same_data
from fxpress._torch.decompose import pytree
from fxpress._torch.symbols import KINDS

_KINDS: tuple[tuple[type, Any], ...] = (
    (torch.Tensor, torch_signature.TensorArgument),
    (torch.SymInt, torch_signature.SymIntArgument),
    (torch.SymFloat, torch_signature.SymFloatArgument),  # only for results of the entire program
    (torch.SymBool, torch_signature.SymBoolArgument),
)
_NUMBERS = tuple(KINDS)


def build(program: ExportedProgram, ends: Ends, stage: Stage) -> ExportedProgram:
    """Return a stage as a program; StageError for a passed value that is not a tensor or number."""
    graph, made = _graph(stage)
    inputs = [ends.state[node] for node in stage.state]
    for node in stage.inputs:
        spec = ends.inputs.get(node)
        argument = _argument(node) if spec is None else spec.arg
        kind = torch_signature.InputKind.USER_INPUT
        inputs.append(torch_signature.InputSpec(kind, argument, None))
    outputs = [spec for _, spec in stage.mutations]
    outputs += [
        torch_signature.OutputSpec(torch_signature.OutputKind.USER_OUTPUT, _argument(node), None)
        for node in stage.outputs
    ]
    taken = [spec.arg for spec in inputs[len(stage.state) :]]
    given = [spec.arg for spec in outputs[len(stage.mutations) :]]
    in_spec = pytree.tree_structure(((0,) * len(taken), {}))
    out_spec = pytree.tree_structure((0,) * len(given))
    call = ModuleCallEntry("", ModuleCallSignature(taken, given, in_spec, out_spec))
    bodies = _bodies(program, made)
    names = _names(program, ends, {str(ends.state[node].target) for node in stage.state})
    return compat.make_program(
        {
            "root": GraphModule(bodies, graph),
            "graph_signature": torch_signature.ExportGraphSignature(inputs, outputs),
            "state_dict": {n: v for n, v in program.state_dict.items() if n in names},
            "range_constraints": ranges_in(program, made, bodies.values()),
            "module_call_graph": [call],
            "example_inputs": None,
            "constants": {n: v for n, v in program.constants.items() if n in names},
            "verifiers": program.verifiers,
            "guards_code": [],  # the manifest has the guards, which use the entire program's names
        },
        is_valid=False,
    )


def _names(program: ExportedProgram, ends: Ends, used: set[str]) -> set[str]:
    """Return the names `used` by a stage, tied names, and unused names with the same storages."""
    names, values = list(program.state_dict), list(program.state_dict.values())
    read = {str(s.target) for n, s in ends.state.items() if n.users or n in ends.written}
    numbers = same_data(values)
    having = {number for name, number in zip(names, numbers, strict=True) if name in used}
    found = {name for name, number in zip(names, numbers, strict=True) if number in having}
    for positions in sharing(values):
        if not used.isdisjoint(names[i] for i in positions):
            found.update(names[i] for i in positions if names[i] not in read)
    return used | found


def _graph(stage: Stage) -> tuple[Graph, dict[Node, Node]]:
    """Return the graph of a stage, and a map from the program's nodes to the graph's."""
    graph = Graph()
    made: dict[Node, Node] = {}

    def copy(node: Node) -> None:
        made[node] = graph.node_copy(node, made.__getitem__)
        made[node].name = node.name

    for node in (*stage.state, *stage.inputs):
        if node.op == "placeholder":
            copy(node)
        else:
            made[node] = graph.placeholder(node.name)
            made[node].name = made[node].target = node.name
            made[node].meta = {key: node.meta[key] for key in ("val",) if key in node.meta}
    for node in stage.operations:
        for source in node.all_input_nodes:
            if source.op == "get_attr" and source not in made:
                copy(source)
        copy(node)
    values = [*(value for value, _ in stage.mutations), *stage.outputs]
    graph.output(tuple(made[value] for value in values))
    return graph, made


def _bodies(program: ExportedProgram, made: dict[Node, Node]) -> dict[str, Any]:
    """Return {name: subgraph} for the subgraphs of operators that a stage's nodes refer to."""
    names = [str(node.target) for node in made if node.op == "get_attr"]
    return {name: getattr(program.graph_module, name) for name in names}


def _argument(node: Node) -> Any:
    for kind, argument in _KINDS:
        if isinstance(value_of(node), kind):
            return argument(name=node.name)
    raise StageError(f"{node} passes between stages, but is neither a tensor nor a number")


def ranges_in(
    program: ExportedProgram, nodes: Iterable[Node], bodies: Iterable[Any]
) -> dict[Any, Any]:
    """Return the ranges of symbols in nodes, because a load warns about ranges of other symbols."""
    missing = set(program.range_constraints)
    for values in (_values(nodes), *map(_values_in, bodies)):
        for value in values:
            if not missing:
                return dict(program.range_constraints)
            missing -= _symbols(value)
    return {s: limits for s, limits in program.range_constraints.items() if s not in missing}


def _values(nodes: Iterable[Node]) -> Iterator[Any]:
    for node in nodes:
        value = value_of(node)
        yield from pytree.tree_leaves(value) if isinstance(value, (tuple, list)) else (value,)


def _values_in(body: Any) -> Iterator[Any]:
    for module in body.modules() if isinstance(body, GraphModule) else ():
        if isinstance(module, GraphModule):
            yield from _values(module.graph.nodes)


def _symbols(value: Any) -> set[Any]:
    if isinstance(value, _NUMBERS):
        return set(value.node.expr.free_symbols)
    if not isinstance(value, torch.Tensor):
        return set()
    strided = value.layout is torch.strided
    sizes = [*value.shape, *((*value.stride(), value.storage_offset()) if strided else ())]
    return set().union(*(_symbols(size) for size in sizes if type(size) is not int))

"""Copy the module call graph for the decomposed program, and rename nodes in its signatures."""

from __future__ import annotations

import copy
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import GraphModule

from fxpress import _native
from fxpress._torch import decompose as compat

_GONE = (
    "It looks like {} is a tensor subclass. Preserving submodule that takes subclass parameter "
    "is not supported in inference IR because we desugar them, resulting in more tensors"
)


def calls_of(
    program: ExportedProgram, module: GraphModule, signature: ExportGraphSignature
) -> list[Any]:
    """Return the entries of the decomposed program's module call graph."""
    calls = [
        copy.copy(entry) if entry.signature is None else copy.deepcopy(entry)
        for entry in program.module_call_graph
    ]
    arguments = [
        argument
        for entry in calls
        if entry.signature is not None
        for argument in (*entry.signature.inputs, *entry.signature.outputs)
    ]
    if arguments:
        _rename(arguments, program, module, signature)
    return calls


def _parts_of_subclasses(state: dict[str, str]) -> set[str]:
    """Return the names of parameters and buffers that were tensor subclasses and were unwrapped."""
    prefix = "parametrizations."
    return {
        ".".join(target.split(".")[1:-1]) for target in state.values() if target.startswith(prefix)
    }


def _rename(
    arguments: list[Any],
    program: ExportedProgram,
    module: GraphModule,
    signature: ExportGraphSignature,
) -> None:
    state = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    new_name = _new_names(program, module, signature, state)
    in_parts = _parts_of_subclasses(state)
    conversions = {
        node.name: node.args[0].name
        for node in _native.list_nodes(program.graph)
        if node.op == "call_function" and node.target in compat.GUARDED_CONVERSIONS
    }
    for argument in arguments:
        name = argument.name
        if name in in_parts:
            raise ValueError(_GONE.format(name))
        if name in new_name:
            argument.name = new_name[name]
        elif name in conversions:  # the conversion returned its input and added no node
            if conversions[name] not in new_name:
                raise ValueError(_GONE.format(conversions[name]))
            argument.name = new_name[conversions[name]]


def _new_names(
    program: ExportedProgram,
    module: GraphModule,
    signature: ExportGraphSignature,
    state: dict[str, str],
) -> dict[str, str]:
    """Return {name of a node in the old graph: its name in the decomposed graph}."""
    old = program.graph_signature
    old_state = {**old.inputs_to_parameters, **old.inputs_to_buffers}
    old_user_inputs = iter(
        [
            node.target
            for node in _native.list_nodes(program.graph)
            if node.op == "placeholder"
            and node.target not in old_state
            and node.target not in old.inputs_to_lifted_tensor_constants
            and node.target not in old.inputs_to_lifted_custom_objs
            and node.target not in old.input_tokens
        ]
    )
    lifted = {
        *signature.inputs_to_lifted_tensor_constants,
        *signature.inputs_to_lifted_custom_objs,
        *signature.input_tokens,
    }
    names: dict[str, str] = {}
    for node in module.graph.nodes:
        history = node.meta.get("from_node", [])
        if history:
            names[history[-1].name] = node.name
        elif node.op == "placeholder" and node.target not in state and node.target not in lifted:
            names[next(old_user_inputs)] = node.name
    for name, target in state.items():
        if not target.startswith("parametrizations.") and name in old_state:
            names[name] = name
    return names

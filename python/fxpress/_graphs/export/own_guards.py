"""The guards of a program on its own inputs: as a module, and asked at once."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fxpress._graphs.export import guards
from fxpress._torch import unlift as torch_unlift
from fxpress._torch.fx import TreeSpec


def argument_names(in_spec: TreeSpec, signature: Any) -> list[str]:
    """Return the names of the parameters of `forward`."""
    if signature and signature.forward_arg_names:
        names: list[str] = signature.forward_arg_names
        return names
    children = in_spec.children()
    if in_spec.type is tuple and [child.type for child in children] == [tuple, dict]:
        args, kwargs = children
        return [*(f"arg_{i}" for i in range(args.num_children)), *kwargs.context]
    return [f"arg_{i}" for i in range(in_spec.num_children)]


def guards_module(
    program: ExportedProgram, placeholders: list[torch.fx.Node], names: list[str]
) -> torch.nn.Module:
    """Return a module that takes the flat inputs and raises where one does not fit the program."""
    own = names[1:] if names[0] == "self" else names
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in own])
    inputs = guards.Inputs(signature, program.example_inputs)
    code = guards.of_placeholders(placeholders, program.range_constraints, inputs.sources)
    code += guards.of_trace(torch_unlift.guards_of_trace(program), inputs, own)
    return guards.as_module(code, inputs)


def check_own_inputs(program: ExportedProgram) -> None:
    """Ask the guards of a program about the fake tensors and symbols that are its inputs.

    A run of its module on these begins so. The answers may add guards to their environment.
    """
    nodes = program.graph.find_nodes(op="placeholder")
    specs = program.graph_signature.input_specs
    # Where the two do not fit each other, who reads the inputs says so.
    given = [n for n, spec in zip(nodes, specs, strict=False) if spec.kind is InputKind.USER_INPUT]
    if not (given and program.example_inputs and torch_unlift.guards_are_welcome()):
        return
    names = argument_names(program.call_spec.in_spec, program.module_call_graph[0].signature)
    guards_module(program, given, names)(*(node.meta["val"] for node in given))

"""Decompose joint graphs, which contain the forward and the backward pass of a program."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import GraphModule, Node

from fxpress._torch import decompose_whole as compat

_NAMED = (TensorArgument, SymIntArgument, SymFloatArgument, SymBoolArgument)


def parts(
    program: ExportedProgram,
    overridden: contextlib.AbstractContextManager[None],
    table: dict[Any, Any],
    loss: int | None,
    custom_triton_ops: bool,
) -> tuple[GraphModule, ExportGraphSignature, dict[str, Any], dict[str, Any]]:
    """Return the graph module, signature, state_dict and constants of the decomposed program.

    `whole.traced` describes the arguments.
    """
    old_module = program.graph_module
    old = [node for node in old_module.graph.nodes if node.op == "placeholder"]
    for name, _ in list(old_module.named_buffers()):
        delattr(old_module, name)
    values = [node.meta["val"] for node in old]
    module, traced = compat.trace_joint(
        old_module, values, table, loss, custom_triton_ops, overridden
    )
    new = [node for node in module.graph.nodes if node.op == "placeholder"]
    outputs = list(module.graph.output_node().args[0])
    assert len(new) == len(old), f"{len(new)} placeholders in place of {len(old)}"
    _name(module, old, new)
    compat.assert_at_run_time(module, compat.shape_env_of(module))
    module.recompile()
    for output, name in zip(outputs, compat.output_names(module), strict=False):
        if name is not None:
            output.name = name
    signature = _signature(program, traced, new, outputs, loss)
    _give_meta(signature, old, new)
    return module, signature, program.state_dict, program.constants


def _name(module: GraphModule, old: list[Node], new: list[Node]) -> None:
    """Give the placeholders `new` the names of `old`; rename other nodes that have these names."""
    names = compat.Names()
    for before, after in zip(old, new, strict=True):
        after.name = after.target = before.name
        names.take(after.name)
    for node in module.graph.nodes:
        if node.op != "placeholder":
            node.name = names.give(node.name)
    compat.name_placeholders_of_bodies(module)


def _renamed(argument: Any, node: Any) -> Any:
    if isinstance(argument, ConstantArgument):
        return argument
    if isinstance(argument, _NAMED):
        return type(argument)(name=node.name)
    raise RuntimeError(f"Type of old_arg not supported: {type(argument)}")


def _signature(
    program: ExportedProgram, traced: Any, new: list[Node], outputs: list[Any], loss: int | None
) -> ExportGraphSignature:
    old = program.graph_signature
    inputs = [
        InputSpec(spec.kind, _renamed(spec.arg, node), spec.target, spec.persistent)
        for spec, node in zip(old.input_specs, new, strict=True)
    ]
    new_name = {
        spec.arg.name: node.name
        for spec, node in zip(old.input_specs, new, strict=True)
        if not isinstance(spec.arg, ConstantArgument)
    }
    specs = _writes(program, traced, outputs)
    writes = len(specs)
    for i, spec in enumerate(old.output_specs):
        kind = OutputKind.LOSS_OUTPUT if i == loss else spec.kind
        argument = _renamed(spec.arg, outputs[writes + i])
        specs.append(OutputSpec(kind, argument, new_name.get(spec.target, spec.target)))
    if loss is not None:
        specs += _gradients(program, traced, outputs[len(specs) :])
    return ExportGraphSignature(input_specs=inputs, output_specs=specs)


def _writes(program: ExportedProgram, traced: Any, outputs: list[Any]) -> list[OutputSpec]:
    """Return the OutputSpecs of the first outputs: the new values of user inputs and buffers."""
    written = traced.user_inputs_to_mutate
    names = [node.name for node in outputs[: len(written)]]
    assert list(written) == names, f"expected the outputs {list(written)}, found {names}"
    positions = {name: i for i, name in enumerate(traced.user_inputs)}
    specs = []
    for name, target in written.items():
        spec = program.graph_signature.input_specs[positions[target]]
        assert spec.kind in (InputKind.USER_INPUT, InputKind.BUFFER), spec.kind
        if spec.kind is InputKind.BUFFER:
            made = (OutputKind.BUFFER_MUTATION, TensorArgument(name=name), spec.target)
        else:
            made = (OutputKind.USER_INPUT_MUTATION, TensorArgument(name=name), spec.arg.name)
        specs.append(OutputSpec(*made))
    return specs


def _gradients(program: ExportedProgram, traced: Any, outputs: list[Any]) -> list[OutputSpec]:
    """Return the OutputSpecs of the last outputs, which are the gradients."""
    old = program.graph_signature.input_specs
    assert traced.backward_signature is not None
    assert len(traced.user_inputs) == len(old)
    specs = {
        name: spec
        for name, spec in zip(traced.user_inputs, old, strict=True)
        if isinstance(spec.arg, TensorArgument)
    }
    made = []
    for node in outputs:
        source = traced.backward_signature.gradients_to_user_inputs[node.name]
        spec = specs[source]
        argument = TensorArgument(name=node.name)
        if spec.kind is InputKind.PARAMETER:
            made.append(OutputSpec(OutputKind.GRADIENT_TO_PARAMETER, argument, spec.target))
        elif spec.kind is InputKind.USER_INPUT:
            made.append(OutputSpec(OutputKind.GRADIENT_TO_USER_INPUT, argument, source))
        else:
            raise AssertionError(f"Unknown input kind: {spec.kind}")
    return made


def _give_meta(signature: ExportGraphSignature, old: list[Node], new: list[Node]) -> None:
    """Copy meta from `old` to `new`: all meta of state, and `val` of non-tensor inputs."""
    state = {*signature.inputs_to_parameters, *signature.inputs_to_buffers}
    for before, after in zip(old, new, strict=True):
        if not isinstance(before.meta["val"], torch.Tensor):
            after.meta["val"] = before.meta["val"]
        if after.target in state:
            after.meta.update(before.meta)

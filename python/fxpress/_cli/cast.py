"""Store the weights of a program in another type, and cast them back where they are used."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from fxpress._serde.hashing import traits_of
from fxpress._serde.operators import schema_of


def with_weights_of(program: ExportedProgram, dtype: torch.dtype) -> ExportedProgram:
    """Return a program that stores its floating-point weights in a type.

    Each is cast to the type that it had before it is used, so that the graph computes in the types
    that it was traced with. Weights that the program may write to keep their type.

    Args:
        program: the program, which is changed.
        dtype: the type.
    """
    signature = program.graph_signature
    written = {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    state, cast = dict(program.state_dict), {}
    kept = set(_written(program.graph))
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    last = placeholders[-1]
    for node in placeholders:
        name = names.get(node.name)
        value = None if name is None or name in written or node in kept else state.get(name)
        if value is None or not value.is_floating_point() or value.dtype == dtype:
            continue
        was = node.meta["val"]
        with program.graph.inserting_after(last):
            last = program.graph.call_function(
                torch.ops.aten._to_copy.default, (node,), {"dtype": was.dtype}
            )
        last.meta = {"val": was, "nn_module_stack": {}}
        node.replace_all_uses_with(last, lambda user, own=last: user is not own)
        with was.fake_mode:
            node.meta["val"] = was.to(dtype)
        key = (value.data_ptr(), value.shape, value.stride())
        if key not in cast:
            stored = value.detach().to(dtype)
            is_parameter = isinstance(value, torch.nn.Parameter)
            cast[key] = torch.nn.Parameter(stored, value.requires_grad) if is_parameter else stored
        state[name] = cast[key]
    program.graph.lint()
    return ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=signature,
        state_dict=state,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _written(graph: Graph) -> Iterator[Node]:
    """Yield the inputs of a graph whose storages its nodes may write to."""
    origins: dict[Node, set[Node]] = {}  # of a value: the inputs whose storage it may share
    for node in graph.nodes:
        if node.op == "placeholder":
            origins[node] = {node}
        if node.op != "call_function":
            continue
        schema = schema_of(node.target)
        if schema is None:  # of higher order, or a function on values
            origins[node] = {
                origin for each in node.all_input_nodes for origin in origins.get(each, ())
            }
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                yield from origins[node]
            continue
        aliased, written, *_ = traits_of(node.target)
        names = [argument.name for argument in schema.arguments]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        origins[node] = set()
        for name, value in given.items():
            found: list[Node] = []
            torch.fx.node.map_arg(value, found.append)
            reached = {origin for each in found for origin in origins.get(each, ())}
            if name in written:
                yield from reached
            if name in aliased:
                origins[node] |= reached

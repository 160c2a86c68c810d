"""Replace tensor attributes of the bodies of higher-order operators by inputs of the bodies.

A body is a GraphModule that an operator such as `cond` calls. The file format cannot store tensors
that are attributes of a body.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import GraphModule, Node

from fxpress._torch import fx as torch_fx
from fxpress._torch import serde as compat

# Higher-order operator -> index of the tuple argument to which new body inputs are appended.
_OPERANDS = {
    "associative_scan": 2,
    "cond": 3,
    "map_impl": 2,
    "scan": 3,
    "while_loop": 3,
    "while_loop_stack_output": 3,
}


def lift_body_constants(program: ExportedProgram) -> ExportedProgram:
    """Lift the tensors of bodies in a copy of a program; return `program` if bodies have none."""
    if not any(map(_tensors, _bodies(program.graph_module))):
        return program
    root = copy.deepcopy(program.graph_module)
    _lift(root)
    specs, constants = list(program.graph_signature.input_specs), dict(program.constants)
    users = (i for i, spec in enumerate(specs) if spec.kind is InputKind.USER_INPUT)
    index = next(users, len(specs))
    before = list(root.graph.nodes)[index]
    taken = {*constants, *program.state_dict, *(spec.target for spec in specs)}
    targets = (name for i in itertools.count() if (name := f"lifted_tensor_{i}") not in taken)
    for (node, value), target in zip(_tensors(root), targets, strict=False):
        constants[target] = value
        with root.graph.inserting_before(before):
            made = root.graph.placeholder(f"c_{target}")
        made.target = made.name
        made.meta["val"] = node.meta["val"]
        _replace(node, made, root)
        specs.insert(index, InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(made.name), target))
        index += 1
    root.recompile()
    signature = dataclasses.replace(program.graph_signature, input_specs=specs)
    return compat.replaced(program, root=root, graph_signature=signature, constants=constants)


def _bodies(module: GraphModule) -> Iterator[GraphModule]:
    for child in module.children():
        if isinstance(child, GraphModule):
            yield child
            yield from _bodies(child)


def _tensors(module: GraphModule) -> list[tuple[Node, torch.Tensor]]:
    """Return (node, tensor) for each get_attr node in a module that reads a tensor."""
    found = []
    for node in module.graph.find_nodes(op="get_attr"):
        value: Any = module
        for name in str(node.target).split("."):
            value = getattr(value, name, None)
        if isinstance(value, torch.Tensor):
            found.append((node, value))
    return found


def _lift(module: GraphModule) -> None:
    """Move the tensors of all bodies in a module, including nested bodies, into the module."""
    for child in module.children():
        if isinstance(child, GraphModule):
            _lift(child)
    counts = Counter(node.target for node in module.graph.find_nodes(op="get_attr"))
    for node in list(module.graph.nodes):
        is_operator = isinstance(node.target, torch_fx.HigherOrderOperator)
        if not is_operator or (position := _OPERANDS.get(node.target.__name__)) is None:
            continue
        named = [a for a in node.args if isinstance(a, Node) and a.op == "get_attr"]
        if all(counts[a.target] == 1 for a in named):  # only this call uses its bodies
            bodies = [getattr(module, str(a.target)) for a in named]
            operands = tuple(_lift_from(bodies, module, node))
            given = (*node.args[position], *operands)
            node.args = (*node.args[:position], given, *node.args[position + 1 :])
    module.recompile()


def _lift_from(bodies: list[GraphModule], module: GraphModule, call: Node) -> Iterator[Node]:
    """Yield the new operands of a call; all bodies of the call get an input for each operand."""
    numbers = itertools.count()
    for body in bodies:
        for node, value in _tensors(body):
            name = next(n for i in numbers if not hasattr(module, n := f"_lifted_{i}"))
            module.register_buffer(name, value, persistent=False)
            with module.graph.inserting_before(call):
                operand = module.graph.get_attr(name)
            operand.meta.update(node.meta)
            for other in bodies:
                before = next(n for n in other.graph.nodes if n.op != "placeholder")
                with other.graph.inserting_before(before):
                    made = other.graph.placeholder(name)
                made.meta["val"] = node.meta["val"]
                if other is body:
                    _replace(node, made, body)
            yield operand


def _replace(node: Node, made: Node, module: GraphModule) -> None:
    """Replace the node of a tensor by `made`; delete the tensor if no other node reads it."""
    node.replace_all_uses_with(made)
    module.graph.erase_node(node)
    path, _, name = str(node.target).rpartition(".")
    if not module.graph.find_nodes(op="get_attr", target=node.target):
        delattr(module.get_submodule(path), name)

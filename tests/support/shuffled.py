"""Rewrite a program with another order and other names; it computes the same."""

from __future__ import annotations

import copy
import random

from torch.export import ExportedProgram


def shuffled(program: ExportedProgram, seed: int) -> ExportedProgram:
    """Return a copy with another valid order and other names of nodes, and only `val` in metas."""
    program = copy.deepcopy(program)
    graph, chance = program.graph, random.Random(seed)
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    placed = set(graph.find_nodes(op="placeholder")) | set(graph.find_nodes(op="get_attr"))
    output = graph.output_node()
    while nodes:
        ready = [n for n in nodes if placed.issuperset(n.all_input_nodes)]
        node = chance.choice(ready)
        nodes.remove(node)
        placed.add(node)
        output.prepend(node)
    names = {}
    for position, node in enumerate(graph.nodes):
        if node.op == "call_function":
            names[node.name] = node.name = f"renamed_{seed}_{position}"
            node.meta = {"val": node.meta["val"]} if "val" in node.meta else {}
    arguments = [spec.arg for spec in program.graph_signature.output_specs]
    for call in program.module_call_graph:
        if call.signature is not None:
            arguments += [*call.signature.inputs, *call.signature.outputs]
    for argument in arguments:
        if hasattr(argument, "name"):
            argument.name = names.get(argument.name, argument.name)
    graph.lint()
    return program

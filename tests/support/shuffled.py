"""Programs that compute the same in other words."""

from __future__ import annotations

import copy
import random

from torch.export import ExportedProgram


def shuffled(program: ExportedProgram, seed: int) -> ExportedProgram:
    """Its nodes in another order that their arguments allow, under other names, without meta."""
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
    for spec in program.graph_signature.output_specs:
        if hasattr(spec.arg, "name"):
            spec.arg.name = names.get(spec.arg.name, spec.arg.name)
    graph.lint()
    return program

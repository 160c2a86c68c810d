"""Programs that a pass has edited: nodes of one module inside the run of another (row U-35).

torch takes the second half of such a run for the first call again, and calls the wrong graph. The
rule here is the program itself: whatever the tree looks like, the numbers are those of the graph.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from hypothesis import given, reject
from hypothesis import strategies as st
from torch.export import ExportedProgram, export

from tests.support.generated import examples
from tests.support.unflatten_cases import quietly
from tests.support.unflatten_compare import assert_same_outputs
from tests.unflatten.test_property_trees import Generated, Made, Plan, arguments, trees

STACK = "nn_module_stack"
EDITS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=4)


def calls(program: ExportedProgram) -> list[torch.fx.Node]:
    return [n for n in program.graph.nodes if n.op == "call_function"]


def edit(program: ExportedProgram, edits: list[tuple[int, int]]) -> None:
    """After the i-th node, a node with the stack of the j-th, whose value is used instead."""
    nodes = calls(program)
    stacks = [n.meta[STACK] for n in nodes]
    stacks += [dict(list(stack.items())[:-1]) for stack in stacks if len(stack) > 1]
    for position, owner in edits:
        node = nodes[position % len(nodes)]
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            continue
        with program.graph.inserting_after(node):
            new = program.graph.call_function(torch.ops.aten.neg.default, (node,))
        new.meta = {**node.meta, STACK: stacks[owner % len(stacks)]}
        node.replace_all_uses_with(new, lambda user, new=new: user is not new)
    rename_outputs(program)
    program.graph_module.recompile()


def rename_outputs(program: ExportedProgram) -> None:
    values = program.graph.output_node().args[0]
    for spec, value in zip(program.graph_signature.output_specs, values, strict=True):
        if isinstance(value, torch.fx.Node):
            spec.arg = type(spec.arg)(value.name)


@examples(30)
@given(trees(writes=False), EDITS, st.booleans())
def test_edited_programs(plan: Plan, edits: list[tuple[int, int]], moved: bool) -> None:
    torch.manual_seed(0)
    model = Generated(plan, Made())
    args, kwargs = arguments(3, False)
    try:
        program = export(model, args, kwargs, strict=False)
    except Exception:
        reject()  # not exported by torch
    if not calls(program):
        reject()
    edit(program, edits)
    if moved:
        move(program, edits)
    expected: Any = copy.deepcopy(program).module()(*args, **kwargs)
    ours = quietly(program)
    for name, module in ours.named_modules():
        graph = getattr(module, "graph", None)
        if isinstance(graph, torch.fx.Graph):
            graph.lint()
            for node in graph.find_nodes(op="call_module"):
                assert module.get_submodule(str(node.target)) is not None, (name, node)
    assert_same_outputs(ours(*args, **kwargs), expected, exact=True)


def move(program: ExportedProgram, edits: list[tuple[int, int]]) -> None:
    """Let nodes run as late as they can, as a scheduler may do."""
    nodes = calls(program)
    for position, _ in edits:
        node = nodes[position % len(nodes)]
        users = [n for n in program.graph.nodes if n in node.users]
        if users:
            users[0].prepend(node)
    program.graph.lint()
    program.graph_module.recompile()

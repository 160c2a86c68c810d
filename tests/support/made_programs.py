"""Build programs of any shape and size from nodes, without a trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

aten = torch.ops.aten


class Maker:
    """Makes a program of operators on float tensors.

    Args:
        parameters: the number of elements of each parameter.
        inputs: the number of elements of each input.
    """

    def __init__(self, parameters: list[int], inputs: list[int]) -> None:
        self.graph, self._mode = Graph(), FakeTensorMode()
        self.parameters = [self._placeholder(f"p_{i}", n) for i, n in enumerate(parameters)]
        self.inputs = [self._placeholder(f"x_{i}", n) for i, n in enumerate(inputs)]

    def _placeholder(self, name: str, elements: int) -> Node:
        node = self.graph.placeholder(name)
        with self._mode:
            node.meta["val"] = torch.empty(elements)
        return node

    def call(self, target: Any, *args: Any) -> Node:
        """Return the node of a call, with its value."""
        node = self.graph.call_function(target, args)
        values = torch.fx.node.map_arg(args, lambda each: each.meta["val"])
        with self._mode:
            node.meta["val"] = target(*values)
        return node

    def program(self, results: list[Node]) -> ExportedProgram:
        """Return the program with these results."""
        self.graph.output(tuple(results))
        named = [TensorArgument(name=node.name) for node in results]
        given = [TensorArgument(name=node.name) for node in self.inputs]
        inputs = [
            InputSpec(InputKind.PARAMETER, TensorArgument(name=node.name), f"weights.{i}")
            for i, node in enumerate(self.parameters)
        ]
        inputs += [InputSpec(InputKind.USER_INPUT, each, None) for each in given]
        outputs = [OutputSpec(OutputKind.USER_OUTPUT, each, None) for each in named]
        in_spec = pytree.tree_structure((tuple(range(len(given))), {}))
        call = ModuleCallSignature(given, named, in_spec, pytree.tree_structure((0,) * len(named)))
        return ExportedProgram(
            root=GraphModule({}, self.graph),
            graph=self.graph,
            graph_signature=ExportGraphSignature(inputs, outputs),
            state_dict={
                f"weights.{i}": torch.nn.Parameter(torch.zeros(node.meta["val"].shape))
                for i, node in enumerate(self.parameters)
            },
            range_constraints={},
            module_call_graph=[ModuleCallEntry("", call)],
        )


def layers(count: int, operator: Callable[..., Any] = aten.mul.Tensor) -> ExportedProgram:
    """Return a program of layers: an operator with a parameter, a residual, an activation."""
    maker = Maker([8] * count, [8])
    value = maker.inputs[0]
    for parameter in maker.parameters:
        inner = maker.call(operator, value, parameter)
        value = maker.call(aten.add.Tensor, value, maker.call(aten.relu.default, inner))
    return maker.program([value])

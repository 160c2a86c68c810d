"""Nodes that read the symbols of a program from its inputs, in front of all others."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from fxpress._graphs.decompose import template as kinds
from fxpress._graphs.decompose.inputs import Input
from fxpress._graphs.decompose.plan import Stamp
from fxpress._graphs.decompose.symbols import Symbols
from fxpress._graphs.decompose.template import NumberSpec, Template, TemplateNode
from fxpress._graphs.decompose.values import Number, Value
from fxpress._torch import symbols as compat


class SizeNodes:
    """What torch puts in front of a program's calls, so that each symbol has a node.

    Attributes:
        of_inputs: for each input the number of the expression that it is; -1: it is no number.
        count: the number of the nodes.
        stamp: the nodes, as what one call adds; None without symbols.
    """

    def __init__(self, inputs: list[Input], symbols: Symbols) -> None:
        self._symbols = symbols
        self._known: set[Any] = set()
        self.of_inputs = [-1] * len(inputs)
        self._graph = Graph()
        self._nodes: list[TemplateNode] = []
        self._numbers: dict[Node, int] = {}
        self._read: list[int] = []
        for number, entry in enumerate(inputs):
            value = entry.value
            symbol = compat.symbol_read(entry.old.meta["val"]) if type(value) is Number else None
            if symbol is not None and symbol not in self._known:
                self._known.add(symbol)
                self.of_inputs[number] = symbols.id_of(symbol)
            elif type(value) is Value and value.facts.is_symbolic:
                self._read_tensor(entry.old, value)
        self.count = len(self._nodes)
        self.stamp: Stamp | None = None
        if self._nodes:
            template = Template(tuple(self._nodes), self._numbers, (), None, (), True)
            self.stamp = Stamp(inputs[0].old, template, self._read, [], len(inputs))

    def _read_tensor(self, old: Node, value: Value) -> None:
        given = old.meta["val"]
        asked = [
            *((compat.SIZE_OF, (i,), size) for i, size in enumerate(given.shape)),
            *((compat.STRIDE_OF, (i,), size) for i, size in enumerate(given.stride())),
            (compat.OFFSET_OF, (), given.storage_offset()),
        ]
        standin: Node | None = None
        for target, place, size in asked:
            symbol = compat.symbol_read(size)
            if symbol is None or symbol in self._known:
                continue
            self._known.add(symbol)
            if standin is None:
                standin = self._graph.placeholder("tensor")
                standin.meta["val"] = given
                self._read.append(value.node)
                self._numbers[standin] = -len(self._read)
            self._add(self._graph.call_function(target, (standin, *place)), symbol)

    def _add(self, node: Node, symbol: Any) -> None:
        compat.describe_size_node(node)
        (standin,) = node.all_input_nodes
        number = self._numbers[standin]
        name = self._graph._target_to_str(node.target)
        items = ((key, kinds.LITERAL, item) for key, item in node.meta.items())
        meta = tuple([(k, kinds.VALUE, None) if k == "val" else (k, h, v) for k, h, v in items])
        value = NumberSpec(symbol, int)
        self._numbers[node] = len(self._nodes)
        self._nodes.append(
            TemplateNode(node.target, node, (number,), name, False, meta, value, symbol)
        )
        node.meta = {}

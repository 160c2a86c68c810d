"""Walk through a program and find a template for each call: what the new graph will have."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

from torch.fx import Node

from fxpress._decompose.keys import Call, fields_of
from fxpress._decompose.record import Recorder
from fxpress._decompose.template import NumberOutput, Output, Template
from fxpress._decompose.values import Number, Storage, UnsafeError, Value
from fxpress._observing.progress import Report
from fxpress._torch import decompose as compat
from fxpress._torch import symbols


class Stamp(NamedTuple):
    """A call of the old program, and what it becomes.

    Attributes:
        node: the node of the old graph.
        template: what it becomes.
        inputs: the numbers of its input nodes in the new trace; -1: no node computes that number.
        storages: its inputs' storages and its own.
        first: the number of its first node.
    """

    node: Node
    template: Template
    inputs: list[int]
    storages: list[Storage]
    first: int


class NeedsTraceError(Exception):
    """A call has no template yet, and no trace is open."""


class Plan:
    """The new trace of a program as stamps, before dead code elimination.

    Args:
        nodes: the calls of the old graph, in order, and its output.
        environment: placeholder of the old graph -> its value in the new one.
        first: the number of placeholders and of the nodes that read symbols from them.
        templates: key of a call -> its template, or why there is none; new ones are added.
        progress: takes the numbers of nodes that the plan has gone through.

    Attributes:
        nodes: the argument.
        stamps: the stamps so far.
        size: how many nodes the new trace has so far.
        output: what the program returns, as containers of Values and constants; after the end.
        traced: how many calls were traced.
    """

    def __init__(
        self,
        nodes: list[Node],
        environment: dict[Node, Any],
        first: int,
        templates: dict[Any, Template | str],
        progress: Report | None = None,
    ) -> None:
        self.nodes = nodes
        self._position = 0
        self._environment = environment
        self._templates = templates
        self._progress = progress
        self._own: dict[Any, Template] = {}  # for this program alone
        self.stamps: list[Stamp] = []
        self.size = first
        self.output: Any = None
        self.traced = 0

    @property
    def is_complete(self) -> bool:
        """Whether the plan is at the end of the program."""
        return self._position == len(self.nodes)

    def advance(self, recorder: Recorder | None) -> None:
        """Go on to the end of the program.

        Args:
            recorder: traces calls without a template.

        Raises:
            NeedsTraceError: there is a call without a template, and no recorder.
            UnsafeError: the program is not known to be safe to stamp.
        """
        nodes = self.nodes
        while self._position < len(nodes):
            node = nodes[self._position]
            if any(used not in self._environment for used in node.all_input_nodes):
                raise UnsafeError("a node that stands before its input")
            if node.op == "output":
                self.output = self._argument(node.args[0])
            elif node.op != "call_function":
                raise UnsafeError(f"a node of kind {node.op}")
            elif node.target is operator.getitem:
                self._environment[node] = self._item(node)
            else:
                self._environment[node] = self._call(node, recorder)
            self._position += 1
            if self._progress is not None:
                self._progress(1)

    def _argument(self, argument: Any) -> Any:
        if type(argument) is Node:
            return self._environment[argument]
        if isinstance(argument, (tuple, list)):
            return type(argument)([self._argument(item) for item in argument])
        return argument

    def _item(self, node: Node) -> Any:
        source, index = node.args
        whole: Any = self._environment[source] if type(source) is Node else None
        if type(whole) not in (tuple, list) or type(index) is not int:
            raise UnsafeError("an item of what is no list")
        return whole[index]

    def _call(self, node: Node, recorder: Recorder | None) -> Any:
        target = node.target
        call = Call(self._environment)
        for argument in node.args:
            call.add(argument)
        for name, argument in node.kwargs.items():
            call.key.append(name)
            call.add(argument)
        if not isinstance(target, compat.OpOverload):
            _check_function(target, call)
        fields = fields_of(node.meta)
        key = (target, fields, len(node.args), *call.key)
        known = self._templates.get(key) or self._own.get(key)
        if isinstance(known, str):
            raise UnsafeError(known)
        if known is None:
            known = self._record(node, call, fields, key, recorder)
        if known.is_from_cache and any(storage.has_moved for storage in call.storages):
            # What is in the cache depends on the metadata in torch's first run.
            raise UnsafeError(f"{target}: the cache of fake tensors decides where its result lies")
        return self._stamp(node, known, call)

    def _record(
        self, node: Node, call: Call, fields: Any, key: Any, recorder: Recorder | None
    ) -> Template:
        if recorder is None:
            raise NeedsTraceError
        try:
            parts = (node.target, node.args, node.kwargs, call, self._environment, fields)
            template = recorder.record(*parts)
        except UnsafeError as unsafe:
            self._templates[key] = str(unsafe)
            raise
        operators = (node.target, *(made.target for made in template.nodes))
        kept = all(map(compat.is_of_torch, operators))
        (self._templates if kept else self._own)[key] = template
        self.traced += 1
        return template

    def _stamp(self, node: Node, template: Template, call: Call) -> Any:
        inputs = [value.node for value in call.values]
        if call.numbers:
            inputs += [-1 if number.node is None else number.node for number in call.numbers]
        first = self.size
        storages = call.storages
        if template.fresh:
            moves = template.moves
            fresh = [Storage(nbytes, has_moved=moves) for nbytes in template.fresh]
            storages = [*storages, *fresh]
        self.stamps.append(Stamp(node, template, inputs, storages, first))
        self.size += len(template.nodes)
        return _bound(template.result, inputs, storages, first)


def _bound(result: Any, inputs: list[int], storages: list[Storage], first: int) -> Any:
    """Return what a call returns, with Values in place of Outputs."""
    if type(result) is Output:
        number = result.value
        node = inputs[-1 - number] if number < 0 else first + number
        return Value(node, result.facts, storages[result.storage])
    if type(result) is NumberOutput:
        computed = result.value
        if computed is not None:
            computed = inputs[-1 - computed] if computed < 0 else first + computed
        return Number(result.expression, result.kind, None if computed == -1 else computed)
    if type(result) in (tuple, list):
        return type(result)([_bound(item, inputs, storages, first) for item in result])
    return result


def _check_function(target: Any, call: Call) -> None:
    """Raise UnsafeError unless a function of Python only computes a number of numbers."""
    if call.values or not symbols.computes(target):
        raise UnsafeError(f"a call of {getattr(target, '__name__', type(target).__name__)}")

"""Plan the decomposed graph: find a template (a recorded trace) for each call of the program."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

from torch.fx import Node

from fxpress._base.observing.progress import Report
from fxpress._graphs.decompose.keys import Call, fields_of
from fxpress._graphs.decompose.record import Recorder, changed_input
from fxpress._graphs.decompose.template import NumberOutput, Output, Template
from fxpress._graphs.decompose.values import (
    Facts,
    Number,
    Storage,
    UnsafeError,
    Value,
    facts_of,
    shared,
    size_of,
)
from fxpress._torch import decompose as compat
from fxpress._torch import symbols
from fxpress._torch.origins import is_replaced


class _ExpectedValues:
    """Predicts the values of nodes that the plan has not reached, from the old program's values.

    In most cases, the decomposed program will have equal values.
    """

    def __init__(self, environment: dict[Node, Any], shape_env: Any) -> None:
        self._known = environment
        self._shape_env = shape_env
        self._made: dict[Node, Value] = {}
        self._storages: dict[int, Storage] = {}

    def inputs_of(self, node: Node) -> dict[Node, Any] | None:
        """Return the values of a call's input nodes, or None if one is not a plain tensor."""
        try:
            return {used: self._value(used) for used in node.all_input_nodes}
        except UnsafeError:
            return None

    def _value(self, node: Node) -> Any:
        found = self._known.get(node) or self._made.get(node)
        if found is None:
            found = self._made[node] = self._describe(node.meta.get("val"))
        if not isinstance(found, Value):
            raise UnsafeError(f"the value of node {node.name!r} is not a plain fake tensor")
        return found

    def _describe(self, old: Any) -> Value:
        if type(old) is not compat.FakeTensor:
            raise UnsafeError(f"the value of a node is a {type(old).__name__}, not a FakeTensor")
        facts: Facts = facts_of(old, self._shape_env, False)
        storage = old.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None:
            known = Storage(size_of(storage.nbytes(), self._shape_env))
            self._storages[storage._cdata] = known
        # Node numbers are negative here, because nodes of the new trace are numbered from 0.
        return Value(-1 - len(self._made), shared(facts._replace(requires_grad=False)), known)


_MANY = 16  # After this many traced templates, one call of each remaining operator is traced.


class Instance(NamedTuple):
    """An instance of a template, for one call of the old program."""

    node: Node  # the call's node in the old graph
    template: Template
    # The numbers of the call's input nodes in the new trace; -1: no node computes that input.
    inputs: list[int]
    storages: list[Storage]  # the storages of the inputs, then of the template's new tensors
    first: int  # the number of the instance's first node in the new trace


class NeedsTraceError(Exception):
    """Raised if a call has no template, and there is no recorder to trace the call."""


class Plan:
    """The nodes of the decomposed program, as instances of templates, including dead nodes.

    Attributes:
        nodes: the nodes of the old program, without placeholders.
        instances: the instances planned so far.
        size: how many nodes the trace has so far.
        output: the output, as containers of Values, Numbers and constants; set at the end.
        traced: how many templates in this plan come from calls that torch traced for this plan.
    """

    def __init__(
        self,
        nodes: list[Node],
        environment: dict[Node, Any],
        first: int,
        templates: dict[Any, Template | str],
        refused: Container[Any] = (),
        progress: Report | None = None,
    ) -> None:
        self.nodes = nodes
        self._positions = {node: i for i, node in enumerate(nodes)}
        self._position = 0
        self._fields = _fields(nodes, refused)
        self._environment = environment
        # storage -> [(old node, the Value of this node that has the storage)]
        self._sharing: dict[Storage, list[tuple[Node, Value]]] = defaultdict(list)
        for node in environment:
            self._note_storages(node)
        self._templates = templates
        self._progress = progress
        self._own: dict[Any, Template] = {}  # templates of calls of users' operators
        self._early: dict[Any, Template] = {}  # templates from `_try_calls` that were not used yet
        self._tries_all = False
        self.instances: list[Instance] = []
        self.size = first
        self.output: Any = None
        self.traced = 0

    @property
    def is_complete(self) -> bool:
        """Whether the plan has reached the end of the program."""
        return self._position == len(self.nodes)

    def advance(self, recorder: Recorder | None) -> None:
        """Plan the remaining calls; `recorder` traces a call that has no template."""
        nodes = self.nodes
        if recorder is not None:
            self._try_calls(recorder, only_writing=True)
        while self._position < len(nodes):
            if recorder is not None and self.traced > _MANY and not self._tries_all:
                self._tries_all = True
                self._try_calls(recorder, only_writing=False)
            node = nodes[self._position]
            if any(used not in self._environment for used in node.all_input_nodes):
                raise UnsafeError(f"node {node.name!r} precedes a node that it uses")
            if node.op == "output":
                self.output = self._argument(node.args[0])
            elif node.target is operator.getitem:
                self._environment[node] = self._item(node)
                self._note_storages(node)
            else:
                self._environment[node] = self._call(node, recorder)
                self._note_storages(node)
            self._position += 1
            if self._progress is not None:
                self._progress(1)

    def _note_storages(self, node: Node) -> None:
        for value in _values_in(self._environment[node]):
            self._sharing[value.storage].append((node, value))

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
            raise UnsafeError(f"node {node.name!r} reads an item of a value that is not a list")
        return whole[index]

    def _try_calls(self, recorder: Recorder, *, only_writing: bool) -> None:
        """Trace a call of each operator that comes later, to refuse unsafe programs early."""
        expected = _ExpectedValues(self._environment, recorder.mode.shape_env)
        known = {instance.node.target for instance in self.instances}
        for position in range(self._position, len(self.nodes)):
            node = self.nodes[position]
            target = node.target
            if not isinstance(target, compat.OpOverload) or target in known:
                continue
            if not only_writing:
                known.add(target)
            elif not target._schema.is_mutable:
                continue
            environment = expected.inputs_of(node)
            if environment is not None:
                found, _ = self._template_of(node, position, environment, recorder, is_early=True)
                if found.writes is not None:
                    self._try_source_of_write(node, expected, recorder)

    def _try_source_of_write(
        self, node: Node, expected: _ExpectedValues, recorder: Recorder
    ) -> None:
        """Trace the call that created the written tensor, so that a write to a view fails early."""
        written = node.args[0]
        source = written
        if type(written) is Node and written.target is operator.getitem:
            source = written.args[0]
        position = self._positions.get(source) if type(source) is Node else None
        if position is None:
            raise changed_input(node.target)  # an input of the program
        environment = expected.inputs_of(source)
        if environment is not None and isinstance(source.target, compat.OpOverload):
            found, _ = self._template_of(source, position, environment, recorder, is_early=True)
            output = found.result if written is source else found.result[written.args[1]]
            if type(output) is not Output or not output.is_base:
                raise changed_input(node.target)
        for user in (*written.users, *node.users):
            self._try_user_of_written(user, written, node, expected, recorder)

    def _try_user_of_written(
        self, user: Node, written: Node, write: Node, expected: _ExpectedValues, recorder: Recorder
    ) -> None:
        """Trace a call that uses a tensor after a write, so that views of the tensor fail early."""
        position = self._positions[user]
        environment = expected.inputs_of(user)
        is_later_call = position > self._positions[write] and user.op == "call_function"
        if environment is None or not is_later_call or user.target is operator.getitem:
            return
        found, call = self._template_of(user, position, environment, recorder, is_early=True)
        numbers = {call.number_of(environment[n]) for n in (written, write) if n in environment}
        if not numbers.isdisjoint(_viewed(found)):
            raise changed_input(write.target)

    def _call(self, node: Node, recorder: Recorder | None) -> Any:
        template, call = self._template_of(node, self._position, self._environment, recorder)
        if template.is_from_cache and any(storage.has_moved for storage in call.storages):
            # torch runs the program before the trace. In that run, the inputs had other metadata.
            reason = "the cache of fake tensors determines the storage of the result"
            raise UnsafeError(f"{node.target}: {reason}")
        changed = {i for i, value in enumerate(call.values) if value.is_written}
        if changed and not changed.isdisjoint(_viewed(template)):
            raise UnsafeError(f"{node.target}: the call creates a view of a tensor written before")
        if template.writes is None:
            return self._instantiate(node, template, call)
        written = call.values[template.writes]
        self._check_write(node, written)
        result = self._instantiate(node, template, call)
        # Later calls get the new value, even if they use the tensor's node from before the write.
        written.node, written.storage, written.is_written = result.node, result.storage, True
        return written

    def _check_write(self, node: Node, written: Value) -> None:
        """Raise UnsafeError unless `written` is a base, and no view of it is used after the write.

        Functionalization would otherwise add nodes, which compute the base and the views again.
        """
        views = (old for old, value in self._sharing[written.storage] if value is not written)
        users = (user for view in views for user in view.users)
        if not written.is_base or any(self._positions[user] >= self._position for user in users):
            raise changed_input(node.target)

    def _template_of(
        self,
        node: Node,
        position: int,
        environment: dict[Node, Any],
        recorder: Recorder | None,
        *,
        is_early: bool = False,
    ) -> tuple[Template, Call]:
        """Return a call's template and arguments; trace the call if there is no template yet."""
        call = Call(node, environment)
        if call.values and not isinstance(node.target, compat.OpOverload):
            raise UnsafeError(_call_of(node.target))
        fields = self._fields[position]
        key = call.key(fields)
        known = self._templates.get(key) or self._own.get(key)
        if isinstance(known, str):
            raise UnsafeError(known)
        if known is None:
            known = self._record(node, call, environment, fields, recorder)
            if is_early:
                self._early[key] = known
            else:
                self.traced += 1
        elif not is_early and self._early.pop(key, None) is not None:
            self.traced += 1
        return known, call

    def _record(
        self,
        node: Node,
        call: Call,
        environment: dict[Node, Any],
        fields: tuple[str, ...],
        recorder: Recorder | None,
    ) -> Template:
        """Trace a call; store and return its template. On UnsafeError, store why there is none."""
        if recorder is None:
            raise NeedsTraceError
        key = call.key(fields)
        try:
            template = recorder.record(node, call, environment, fields)
        except UnsafeError as unsafe:
            self._templates[key] = str(unsafe)
            raise
        operators = (node.target, *(made.target for made in template.nodes))
        is_shared = all(map(compat.is_of_torch, operators))
        (self._templates if is_shared else self._own)[key] = template
        return template

    def _instantiate(self, node: Node, template: Template, call: Call) -> Any:
        inputs = [value.node for value in call.values]
        if call.numbers:
            inputs += [-1 if number.node is None else number.node for number in call.numbers]
        first = self.size
        storages = call.storages
        if template.fresh:
            moves = template.moves
            fresh = [Storage(nbytes, has_moved=moves) for nbytes in template.fresh]
            storages = [*storages, *fresh]
        self.instances.append(Instance(node, template, inputs, storages, first))
        self.size += len(template.nodes)
        return _bound(template.result, inputs, storages, first, call.values)


def _bound(
    result: Any, inputs: list[int], storages: list[Storage], first: int, values: list[Value]
) -> Any:
    """Return the result of an instance: Values and Numbers replace Outputs and NumberOutputs."""
    if type(result) is Output:
        if result.argument is not None:
            return values[result.argument]
        number = result.value
        node = inputs[-1 - number] if number < 0 else first + number
        return Value(node, result.facts, storages[result.storage], result.is_base)
    if type(result) is NumberOutput:
        computed = result.value
        if computed is not None:
            computed = inputs[-1 - computed] if computed < 0 else first + computed
        return Number(result.expression, result.kind, None if computed == -1 else computed)
    if type(result) in (tuple, list):
        return type(result)([_bound(item, inputs, storages, first, values) for item in result])
    return result


def _viewed(template: Template) -> Iterator[int]:
    """Yield the index in `Call.values` of each tensor of which the call creates a view.

    If an earlier call wrote to such a tensor, functionalization computes the view a second time.
    """
    for node in template.nodes:
        if compat.is_view(node.target):
            yield from (-1 - used for used in node.uses if used < 0)


def _values_in(value: Any) -> list[Value]:
    if type(value) in (tuple, list):
        return [found for item in value for found in _values_in(item)]
    return [value] if type(value) is Value else []


def _fields(nodes: list[Node], refused: Container[Any]) -> list[tuple[str, ...]]:
    """Check all nodes; return, for each node, the keys of its meta that a trace copies."""
    found: list[tuple[str, ...]] = []
    checked: set[Any] = set()
    for node in nodes:
        target = node.target
        if node.op == "output" or target is operator.getitem:
            found.append(())
            continue
        if node.op != "call_function":
            raise UnsafeError(f"node {node.name!r} has the op {node.op!r}")
        if target not in checked:
            _check_target(target, refused)
            checked.add(target)
        found.append(fields_of(node.meta))
    return found


def _check_target(target: Any, refused: Container[Any]) -> None:
    """Raise UnsafeError if calls of the target cannot be instantiated."""
    if not isinstance(target, compat.OpOverload):
        if not symbols.computes(target):  # a function on symbolic numbers, such as operator.mul
            raise UnsafeError(_call_of(target))
    elif target in refused:
        raise UnsafeError(f"the decomposition of {target} is the user's function")
    elif is_replaced(target):
        raise UnsafeError(f"the kernel of {target} is the user's")


def _call_of(target: Any) -> str:
    return f"the program calls {getattr(target, '__name__', type(target).__name__)}"

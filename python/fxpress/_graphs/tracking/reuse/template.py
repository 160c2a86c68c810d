"""Build the template of a recorded call: steps, guards and result, which equal calls repeat."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fxpress._graphs.tracking.reuse.recording import Call, Correspondence, Recording
from fxpress._graphs.tracking.reuse.structure import NotReusable
from fxpress._torch import reuse as compat
from fxpress._torch.reuse import VariableTracker, variables
from fxpress._torch.reuse_inputs import can_copy_parameter

# Keys of `Node.meta` whose values an instance computes, and keys whose values it copies.
_COMPUTED = {
    "nn_module_stack",
    "source_fn_stack",
    "stack_trace",
    "example_value",
    "tensor_dict",
    "grapharg",
}
_COPIED = {"creation_timestamp", "custom", "seq_nr", "partitioner_tag"}


@dataclass(slots=True, eq=False)
class Step:
    """One step of a call: it adds an input or another node, or renames a node."""

    kind: str  # "input", "node" or "name"
    node: torch.fx.Node
    candidate: str  # the name that Dynamo proposed
    fake: Any = None  # the value of the node; None for an input that cannot be copied
    # Only for an input:
    source: Any = None
    tensor: Any = None
    variable: Any = None
    number: int = -1  # the tensor's number in the ModuleStructure


class Template:
    """The steps, guards and result of a recorded call.

    Raises:
        NotReusable: no call can repeat the recorded call.
    """

    def __init__(self, recording: Recording) -> None:
        self.call = call = recording.call  # storing `recording` would create a cycle
        journal, output = call.journal, call.journal.output
        start, end = recording.start, recording.end
        self._guards_at_start = start.guards
        self.arguments: list[torch.fx.Node] = [
            each.as_proxy().node for each in call.arguments.tensors
        ]
        self.entered = journal.entered[start.entered : end.entered]
        self.built = journal.built[start.built : end.built]
        self.codes = list(itertools.islice(output.traced_code, start.codes, end.codes))
        if end.generators:
            made = output.local_generators[start.generators : end.generators]
            if not all(map(compat.is_exhausted, made)):
                raise NotReusable("the earlier call leaves a generator open")
        self.numbers = call.structure.numbers
        self._inside = (call.source, getattr(call.source, "base", call.source))
        self.reads = {
            (self.numbers[module], name)
            for module, name in journal.reads[start.reads : end.reads]
            if module in self.numbers
        }
        if call.tracked not in ((), (0,)):
            raise NotReusable("the earlier call shares a part of its module with another call")
        for module, source in self.built:
            if id(module) not in self.numbers or not self.is_inside(source):
                raise NotReusable("the earlier call is the first call that uses another module")
        self.guards = list(itertools.islice(output.guards.inner, start.guards, end.guards))
        self.steps = list(self._steps(journal.events[start.events : end.events]))
        self.renamed = {step.node for step in self.steps if step.kind == "name"}
        self.fresh_guards = self._fresh_guards()
        self.sizes = self._sizes(journal.sizes[start.sizes : end.sizes])
        self.result = self._result(recording.result)

    def check(self, other: Call) -> None:
        """Raise NotReusable if `other`, with an equal key, might be traced differently."""
        recorded = self.call
        if other.journal.mutations != recorded.mutations:
            raise NotReusable("an object that outlives the two calls was changed between them")
        if other.tracked != recorded.tracked or other.met != recorded.met:
            raise NotReusable("the call shares a part of its module with another call")
        if not recorded.state.check():
            raise NotReusable("torch's global state has changed since the earlier call")
        for (number, name), old, new in zip(
            recorded.structure.names,
            recorded.structure.values,
            other.structure.values,
            strict=True,
        ):
            if old != new and self._is_read(number, name):
                raise NotReusable(f"the call reads `{name}`, which differs from the earlier call's")
        same = Correspondence(recorded, other)
        for size, source in self.sizes:
            name = same.source(source).name
            if size.merged_by_another(name) != size.merged:
                raise NotReusable(f"the size {name} had another value in the earlier call")

    def _is_read(self, number: int, name: str) -> bool:
        return (
            (number, name) in self.reads
            or (number, "__dict__") in self.reads
            or name in _READ_BY_DYNAMO
        )

    def is_inside(self, source: Any) -> bool:
        """Return whether a source is the called module, or an object read from this module."""
        return any(compat.is_from_source(source, each) for each in self._inside)

    def _steps(self, events: Any) -> Any:
        nodes = [node for node, _, _ in events if node is not None]
        by_name = {node.name: node for node in (*nodes, *self.arguments)}
        for node, candidate, name in events:
            if node is None:
                named = by_name.get(name)
                if named is None:
                    raise NotReusable("a name was given to a node of another call")
                yield Step("name", named, candidate)
                continue
            step = (
                self._input(node, candidate)
                if node.op in _INPUTS
                else Step("node", node, candidate)
            )
            self._check_meta(step)
            yield step

    def _input(self, node: torch.fx.Node, candidate: str) -> Step:
        step = Step("input", node, candidate)
        found = compat.input_variable(self.call.journal.output, node)
        if found is None:
            raise NotReusable(f"{node.target}, an input of the call, is not an input of the graph")
        step.tensor, step.variable = found
        step.source = step.variable.source
        step.number = self.numbers.get(id(step.tensor), -1)
        if step.number < 0 or not self.is_inside(step.source):
            raise NotReusable("the earlier call is the first call that reads an input of the graph")
        return step

    def _check_meta(self, step: Step) -> None:
        node = step.node
        unknown = node.meta.keys() - _COMPUTED - _COPIED
        if unknown:
            raise NotReusable(f"the meta of node {node} has {', '.join(sorted(unknown))}")
        example = node.meta.get("example_value")
        if step.kind == "input":
            if example._version:
                raise NotReusable("the call changes a parameter or a buffer in place")
            if type(step.variable) is compat.TensorVariable and can_copy_parameter(example):
                step.fake = example
            return
        for each in _leaves(example):
            if isinstance(each, torch.Tensor):
                if type(each) is not compat.FakeTensor or each.layout is not torch.strided:
                    found = f"{each.layout} {type(each).__name__}"
                    raise NotReusable(f"node {node} returns a {found}, not a strided FakeTensor")
                if each.constant is not None or each.is_conj() or each.is_neg():
                    raise NotReusable(f"node {node} returns a constant or a conjugate view")
            elif not isinstance(each, _NUMBERS):
                raise NotReusable(f"node {node} returns a {type(each).__name__}")
        step.fake = example

    def _fresh_guards(self) -> list[tuple[Any, Any]]:
        """Return (guard, key) pairs. Key None: Dynamo does not add the guard with an input."""
        inputs = {step.source for step in self.steps if step.kind == "input"}
        found: list[tuple[Any, Any]] = []
        before: set[Any] = set()
        for guard in self.guards:
            if not self.is_inside(guard.originating_source):
                # Outside of the module, Dynamo adds some guards in each call, and others once.
                before = before or self._guards_before()
                if compat.guard_key(guard) not in before:
                    raise NotReusable(f"the earlier call is the first call that reads {guard.name}")
            if compat.checks_identity(guard) and self._is_of_call(guard.originating_source):
                raise NotReusable(f"the call depends on the identity of {guard.name}")
            if guard.originating_source in inputs:
                found.append((guard, (guard.originating_source, compat.guard_kind(guard))))
            elif compat.is_repeatable(guard):
                found.append((guard, None))
            else:
                raise NotReusable(f"the call's guard {guard.create_fn_name()} checks one object")
        return found

    def _is_of_call(self, source: Any) -> bool:
        """Return whether an equal call may have a different object at this source."""
        return isinstance(self.call.journal.output.resolve_source_value(source), _NUMBERED)

    def _guards_before(self) -> set[Any]:
        guards = self.call.journal.output.guards.inner
        return set(map(compat.guard_key, itertools.islice(guards, self._guards_at_start)))

    def _sizes(self, sizes: list[compat.SeenSize]) -> list[tuple[compat.SeenSize, Any]]:
        """Return (size that the call recorded, the source of the size) for each of `sizes`."""
        sources = [step.source for step in self.steps if step.kind == "input"]
        sources += [guard.originating_source for guard in self.guards]
        by_name = {source.name: source for source in sources} if sizes else {}
        if any(size.name not in by_name for size in sizes):
            raise NotReusable("the call reads sizes of values that are not inputs of the call")
        return [(size, by_name[size.name]) for size in sizes]

    def _result(self, variable: Any) -> Callable[[Any], VariableTracker]:
        """Return a function: `_Instance` of a later equal call -> variable of its result."""
        if isinstance(variable, compat.LazyVariableTracker):
            if not variable.is_realized():
                raise NotReusable("Dynamo has not evaluated the result of the call")
            variable = variable.realize()
        for index, each in enumerate(self.call.arguments.tensors):
            if each is variable:
                return lambda instance: instance.call.arguments.tensors[index]
        for index, (container, _) in enumerate(self.call.arguments.containers):
            if container is variable:
                return lambda instance: instance.call.arguments.containers[index][0]
        kind = type(variable)
        if kind in (compat.TensorVariable, compat.SymNodeVariable):
            node = variable.proxy.node
            if variable in self.call.journal.effects.store_attr_mutations:
                raise NotReusable("the program sets attributes of the call's result")
            for step in self.steps:
                if step.node is node and step.kind != "name":
                    return lambda instance: instance.variable(step, variable)
            raise NotReusable("the result of the call existed before the call")
        if kind is variables.ConstantVariable:
            return lambda instance: variable
        if kind in (variables.TupleVariable, variables.ListVariable) and not variable.source:
            parts = [self._result(each) for each in variable.items]
            return lambda instance: instance.container(variable, [part(instance) for part in parts])
        raise NotReusable(f"the result of the call is a {kind.__name__}")


def template_of(recording: Recording) -> Template:
    """Return the template of a recorded call; build it at the first use."""
    recording.check()
    if recording.template is None:
        try:
            recording.template = Template(recording)
        except NotReusable as error:
            recording.reason = str(error)
            raise
    made: Template = recording.template
    return made


# Attributes that Dynamo reads directly from the live module, unseen by the journal.
_READ_BY_DYNAMO = frozenset(vars(torch.nn.Module()))
_NUMBERED = (torch.nn.Module, torch.Tensor, dict, list, set)  # differ in equal calls
_INPUTS = ("placeholder", "get_attr")
_NUMBERS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool, type(None), torch.Size)


def _leaves(value: Any) -> Any:
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        for each in value:
            yield from _leaves(each)
    else:
        yield value

"""Trace repeated calls faster in a strict export.

Dynamo captures a flat graph of calls of torch's functions. make_fx runs this graph to trace the
operators that the functions call. A call's key has all that its trace depends on. torch runs the
first call with each key, and fxpress records the operators as a recipe. For a later call with this
key, fxpress creates the nodes and fake tensors from the recipe.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from fxpress._graphs.trace.fakes import Fakes, is_simple
from fxpress._graphs.trace.inputs import add_counts, counted_since
from fxpress._graphs.trace.proxy_calls import ProxyCalls, node_of_number
from fxpress._graphs.trace.results import (
    CallValues,
    Facts,
    Index,
    NotRepeatableError,
    Number,
    RepeatedValues,
    Result,
    add_arguments,
    facts_of,
    mapped,
    numbers_of,
    symbolic,
)
from fxpress._torch import tracing as compat
from fxpress._torch.fakes import fake_result
from fxpress._torch.origins import BUILTIN, is_torchs, user_kernel
from fxpress._torch.symbols import comparable


class _Counts(NamedTuple):
    """The calls of functions that torch counted since the previous operator of a call."""

    functions: list[tuple[Any, int]]  # (function of torch, number of calls)
    last: Any  # the last called function
    gradients: int  # the number of autograd functions


class _Step(NamedTuple):
    """A call of an operator."""

    function: Any
    args: Any  # with an Index in place of each tensor, and a Number for each symbolic int
    kwargs: dict[str, Any]
    before: _Counts
    excluded: Any  # the excluded dispatch keys if autograd is among them; else None
    gradients: int  # the number of autograd functions that the operator creates
    result: Any  # a Result, or a list or tuple of them


class _Recipe(NamedTuple):
    """What torch's run of a call has added to the trace."""

    steps: list[_Step]
    after: _Counts
    result: Any  # with an Index in place of each tensor
    new: list[torch.SymInt]  # the symbolic ints that no argument had

    def has_views(self) -> bool:
        """Return whether a result of an operator shares the storage of another tensor."""
        results = [step.result for step in self.steps]
        return any(t.base is not None for each in results for t in _tensors(each))


def _tensors(result: Any) -> list[Result]:
    return [result] if type(result) is Result else [t for each in result for t in _tensors(each)]


class Captured:
    """Runs the calls of captured graphs, in one trace at a time."""

    def __init__(self, fakes: Fakes, calls: ProxyCalls) -> None:
        self._fakes = fakes
        self._calls = calls
        self._nodes: set[Node] = set()  # the calls that may be repeatable
        self._writes = False  # whether a call may write to a tensor
        self._forget()

    def _forget(self) -> None:
        self._tracer: Any = None
        self._recipes: dict[Any, _Recipe | None] = {}
        self._facts: dict[int, Facts] = {}  # by the id of the fake tensor

    def run(self, original: Callable[..., Any], interpreter: Any, node: Node) -> Any:
        """Run a node from the recipe of its key; without one, run torch's `original`."""
        tracer = compat.pre_dispatch_tracer()
        if type(tracer) is not compat.STRICT_TRACER:
            return original(interpreter, node)
        if node.op == "output":  # free fake tensors, so that torch creates new ones for constants
            self._forget()
            return original(interpreter, node)
        if tracer is not self._tracer:
            self._begin(tracer, interpreter.module.graph)
        if node not in self._nodes:
            return original(interpreter, node)
        with compat.DisableTorchFunction():
            try:
                inputs, numbers, key = self._key(interpreter.env, node)
            except NotRepeatableError:
                key = None
            else:
                recipe = self._recipes.get(key)
                if recipe is not None:
                    with interpreter._set_current_node(node), compat.without_tracing():
                        return self._repeat(recipe, inputs, numbers)
                if key in self._recipes:
                    key = None
        if key is None:
            return original(interpreter, node)
        misses = compat.cache_misses()
        with compat.DisableTorchFunction():  # torch must not count fxpress's calls
            recording = _Recording(self._fakes, tracer, inputs, numbers)
        self._calls.recording = recording
        try:
            result = original(interpreter, node)
        finally:
            self._calls.recording = None
        if compat.cache_misses() == misses:  # else, later calls may have other storages
            with compat.DisableTorchFunction():
                recipe = recording.recipe(result)
            # Autograd does not see that an instantiated view is a view, so it would miss a write.
            is_safe = recipe is not None and not (self._writes and recipe.has_views())
            self._recipes[key] = recipe if is_safe else None
        return result

    def _begin(self, tracer: Any, graph: Graph) -> None:
        self._forget()
        self._tracer = tracer
        calls = [node for node in graph.nodes if node.op in ("call_function", "call_method")]
        writes = set(filter(_may_write, calls))
        self._writes = bool(writes)
        allowed = fake_result and compat.has_only_fake_modes() and not user_kernel()
        allowed = allowed and not any(map(_may_set_state, {*calls} - writes))
        self._nodes = _repeatable([c for c in calls if c not in writes]) if allowed else set()

    def _key(
        self, env: dict[Node, Any], node: Node
    ) -> tuple[list[Any], list[torch.SymInt], tuple[Any, ...]]:
        """Return the distinct tensors and symbolic ints of a call's arguments, and its key."""
        state = compat.autograd_state()
        if state is None:
            raise NotRepeatableError
        indexes: dict[int, int] = {}
        storages: dict[int, int] = {}
        inputs: list[Any] = []
        places: dict[int, int] = {}
        numbers: list[torch.SymInt] = []
        key: list[Any] = [node.op, node.target, state, *node.kwargs]

        def add_number(number: torch.SymInt) -> None:
            place = places.setdefault(id(number.node), len(numbers))
            if place == len(numbers):
                numbers.append(number)
            key.append(place)  # torch tells symbolic ints apart by identity

        def add(value: Any) -> bool:
            kind = type(value)
            if kind is torch.SymInt:
                key.append((kind, comparable(value)))
                add_number(value)
            elif kind is compat.FakeTensor:
                number = indexes.get(id(value))
                if number is None:
                    number = indexes[id(value)] = len(inputs)
                    inputs.append(value)
                    facts = self._facts_of(value)  # refuses tensors without a storage
                    storage = value.untyped_storage()._cdata
                    key.append(storages.setdefault(storage, len(storages)))
                    key.append(facts.key)
                    for each in facts.numbers:
                        add_number(each)
                key.append(Index(number))
            else:
                return False
            return True

        add_arguments(node, env, key, add)
        if not inputs:
            raise NotRepeatableError
        if numbers:
            key.append(compat.version_of(inputs[0]))
        return inputs, numbers, tuple(key)

    def _facts_of(self, fake: Any) -> Facts:
        known = self._facts.get(id(fake))
        if known is None or (known.numbers and known.version != compat.version_of(fake)):
            traced = self._tracer.tensor_tracker.get(fake)
            if traced is None or traced.constant is not None or not is_simple(fake):
                raise NotRepeatableError
            known = facts_of(fake)
            if not self._writes:
                self._facts[id(fake)] = known
        return known

    def _repeat(self, recipe: _Recipe, inputs: list[Any], numbers: list[torch.SymInt]) -> Any:
        """Add the nodes of a recipe to the trace, and return the call's result."""
        tracer = self._tracer
        values = RepeatedValues(self._fakes, inputs, numbers, recipe.new)
        nodes = [tracer.tensor_tracker[fake].proxy.node for fake in inputs]

        def argument(value: Index | Number) -> Any:
            if type(value) is Number:
                return node_of_number(values.numbers[value.number], tracer)
            found = nodes[value.number]
            if found is None:  # an item of a tuple, whose node torch's `track_tensor_tree` created
                found = tracer.tensor_tracker[values.tensors[value.number]].proxy.node
            return found

        def made(item: Result) -> Any:
            fake = values.create(item)
            if not self._writes:
                own = () if item.numbers is None else symbolic(*numbers_of(fake))
                self._facts[id(fake)] = item.facts._replace(fake=fake, numbers=own)
            return fake

        for step in recipe.steps:
            self._count(step.before)
            guard = contextlib.nullcontext()
            if step.excluded is not None:
                guard = compat.excluding(step.excluded)
            with self._calls.originating(step.function), guard:
                args = mapped(step.args, _ARGUMENT, argument)
                kwargs = mapped(step.kwargs, _ARGUMENT, argument)
                node = self._calls.create_node(tracer, step.function, args, kwargs)
                compat.count_gradients(step.gradients)
                result = mapped(step.result, (Result,), made)
                if type(step.result) is Result:
                    nodes.append(node)
                else:
                    nodes += [None] * (len(values.tensors) - len(nodes))
                self._calls.set_result(node, result, tracer)
        self._count(recipe.after)
        return mapped(recipe.result, (Index,), lambda index: values.tensors[index.number])

    def _count(self, counts: _Counts) -> None:
        add_counts(self._tracer, counts.functions)
        self._tracer.torch_fn_metadata = counts.last
        compat.count_gradients(counts.gradients)


class _Recording:
    """Records the operators of one call that torch runs."""

    def __init__(
        self, fakes: Fakes, tracer: Any, inputs: list[Any], numbers: list[torch.SymInt]
    ) -> None:
        self._values = CallValues(fakes, inputs, numbers)
        self._tracer = tracer
        self._expected = 0  # how many nodes a repetition adds
        self._steps: list[_Step] = []
        self._length = len(tracer.graph.nodes)
        self._state = compat.autograd_state()
        self._is_spoiled = False
        self._mark()

    def _mark(self) -> None:
        self._counts = dict(self._tracer.torch_fn_counts)
        self._gradients = compat.counted_gradients()

    def _since_mark(self) -> _Counts:
        tracer = self._tracer
        return _Counts(
            counted_since(tracer.torch_fn_counts, self._counts),
            tracer.torch_fn_metadata,
            compat.counted_gradients() - self._gradients,
        )

    def spoil(self) -> None:
        """Give up the recipe, because torch's code traces an operator of the call."""
        self._is_spoiled = True

    def begin(self, function: Any, args: Any, kwargs: dict[str, Any], created: int) -> None:
        """Record an operator before its node is created; `created` counts new nodes for SymInts."""
        self._expected += created + 1
        if self._is_spoiled or function.namespace not in BUILTIN:
            self._is_spoiled = True
            return
        try:
            args, kwargs = self._values.argument(args), self._values.argument(kwargs)
        except NotRepeatableError:
            self._is_spoiled = True
            return
        excluded = compat.excluded_autograd()
        self._steps.append(_Step(function, args, kwargs, self._since_mark(), excluded, 0, None))
        self._mark()

    def end(self, result: Any, gradients: int) -> None:
        """Record the result of the operator, after the nodes of the result were created.

        `gradients` is the count of autograd functions from before these nodes were created.
        """
        if self._is_spoiled:
            return
        try:
            described = self._values.result(result)
        except NotRepeatableError:
            self._is_spoiled = True
            return
        created = gradients - self._gradients
        self._steps[-1] = self._steps[-1]._replace(gradients=created, result=described)
        if type(described) is not Result:
            self._expected += len(described)  # each item has a node
        self._mark()

    def recipe(self, result: Any) -> _Recipe | None:
        """Return the recipe of the call, which returned `result`; None if it is not repeatable."""
        if self._is_spoiled or not self._steps:
            return None
        added = len(self._tracer.graph.nodes) - self._length
        if compat.autograd_state() != self._state or added != self._expected:
            return None
        try:
            described = self._values.argument(result)
            return _Recipe(self._steps, self._since_mark(), described, self._values.new_numbers)
        except NotRepeatableError:
            return None


_ARGUMENT = (Index, Number)


def _repeatable(calls: list[Node]) -> set[Node]:
    """Return the calls of methods and of torch's functions that have a stack trace."""
    own = {call.target for call in calls if call.op == "call_function"}
    own = {target for target in own if is_torchs(target) and not compat.is_of_functorch(target)}
    return {c for c in calls if (c.op == "call_method" or c.target in own) and c.stack_trace}


def _may_write(call: Node) -> bool:
    """Return whether a call may write to a tensor."""
    target = call.target
    if isinstance(target, compat.OpOverload):
        return bool(target._schema.is_mutable)
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    given = dict(zip(_parameters(target), call.args, strict=False)) | call.kwargs
    return bool(
        (name.endswith("_") and not name.endswith("__"))
        or name in _WRITING
        or "out" in given
        or given.get("inplace")
        or given.get("max_norm") is not None  # an embedding scales its weight
        or (isinstance(target, compat.OpOverloadPacket) and compat.may_write(target))
    )


def _may_set_state(call: Node) -> bool:
    """Return whether a call that returns nothing may change a state on which later calls depend.

    True for `autograd.grad` too: it reads the graph of autograd, which repetitions do not extend.
    """
    if call.meta.get("example_value") is not None and call.target is not torch.autograd.grad:
        return False
    name = getattr(call.target, "__name__", "")
    return name not in _HARMLESS and not name.startswith(("_check", "_assert", "sym_constrain"))


# Functions that return nothing. The state that they set is in keys, or prevents repetitions.
_HARMLESS = frozenset(
    ("_set_grad_enabled", "_enter_autocast", "_exit_autocast", "_log_api_usage_once")
)
_IN_PLACE = [name for name in dir(operator) if f"i{name}" in dir(operator)]
_WRITING = frozenset(
    ("setitem", "__setitem__", *(f"i{n}" for n in _IN_PLACE), *(f"__i{n}__" for n in _IN_PLACE))
) | {"instance_norm"}


@functools.cache
def _parameters(function: Any) -> Iterable[str]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return ()

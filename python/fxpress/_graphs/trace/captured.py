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
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node, Proxy
from torch.fx.immutable_collections import immutable_list

from fxpress._graphs.trace.fakes import Fakes, is_simple
from fxpress._graphs.trace.inputs import add_counts, counted_since
from fxpress._graphs.trace.proxy_calls import PLAIN_TYPES, ProxyCalls, node_of_number
from fxpress._torch import tracing as compat
from fxpress._torch.fakes import share_gradient_edge
from fxpress._torch.origins import BUILTIN, is_torchs, user_kernel
from fxpress._torch.symbols import another_number, comparable


class _Index(NamedTuple):
    """The number of a tensor in a call: arguments come first, then results of operators."""

    number: int


class _Number(NamedTuple):
    """The number of a symbolic int in a call: ints of arguments come first, then new ones."""

    number: int


class _Tensor(NamedTuple):
    """A fake tensor that an operator returned."""

    pattern: Any  # a detached copy of it
    edge: Any  # a tensor with the same gradient edge; None: no gradients are required
    base: int | None  # the index of a tensor with the same storage; None: a new storage
    facts: Any  # see `_Facts`
    new: list[torch.SymInt]  # the symbolic ints that no tensor or argument had before
    numbers: Any  # sizes, strides and offset with a _Number for each symbolic int; None: no symbols


class _Counts(NamedTuple):
    """The calls of functions that torch counted since the previous operator of a call."""

    functions: list[tuple[Any, int]]  # (function of torch, number of calls)
    last: Any  # the last called function
    gradients: int  # the number of autograd functions


class _Step(NamedTuple):
    """A call of an operator."""

    function: Any
    args: Any  # with an _Index in place of each tensor, and a _Number for each symbolic int
    kwargs: dict[str, Any]
    before: _Counts
    excluded: Any  # the excluded dispatch keys if autograd is among them; else None
    gradients: int  # the number of autograd functions that the operator creates
    result: Any  # a _Tensor, or a list or tuple of them


class _Recipe(NamedTuple):
    """What torch's run of a call has added to the trace."""

    steps: list[_Step]
    after: _Counts
    result: Any  # with an _Index in place of each tensor
    is_symbolic: bool

    def has_views(self) -> bool:
        """Return whether a result of an operator shares the storage of another tensor."""
        results = [step.result for step in self.steps]
        return any(t.base is not None for each in results for t in _tensors(each))


def _tensors(result: Any) -> list[_Tensor]:
    return [result] if type(result) is _Tensor else [t for each in result for t in _tensors(each)]


class _NotRepeatableError(Exception):
    """Raised for a call that torch's code has to run each time."""


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
        self._facts: dict[int, _Facts] = {}  # by the id of the fake tensor

    def run(self, original: Callable[..., Any], interpreter: Any, node: Node) -> Any:
        """Run a node by `original`, which is torch's `run_node`, or from the recipe of its key."""
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
            except _NotRepeatableError:
                key = None
            else:
                recipe = self._recipes.get(key)
                if recipe is not None:
                    with interpreter._set_current_node(node):
                        if not recipe.is_symbolic:
                            return self._repeat(recipe, inputs, numbers)
                        with compat.without_tracing():
                            return self._repeat(recipe, inputs, numbers)
                if key in self._recipes:
                    key = None
        if key is None:
            return original(interpreter, node)
        misses = compat.cache_misses()
        with compat.DisableTorchFunction():  # torch counts calls of its functions
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
        allowed = share_gradient_edge and compat.has_only_fake_modes() and not user_kernel()
        allowed = allowed and not any(map(_may_set_state, {*calls} - writes))
        self._nodes = _repeatable([c for c in calls if c not in writes]) if allowed else set()

    def _key(
        self, env: dict[Node, Any], node: Node
    ) -> tuple[list[Any], list[torch.SymInt], tuple[Any, ...]]:
        """Return the distinct tensors and symbolic ints of a call's arguments, and its key."""
        state = compat.autograd_state()
        if state.autocast:  # autocast copies a weight only at the weight's first use
            raise _NotRepeatableError
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

        todo = [*node.args, *node.kwargs.values()][::-1]
        while todo:
            argument = todo.pop()
            value = env[argument] if type(argument) is Node else argument
            kind = type(value)
            if kind is compat.FakeTensor:
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
                key.append(_Index(number))
            elif kind in _CONSTANTS:
                key.append(kind)
                key.append(value)
            elif kind is float:
                key.append(repr(value))  # -0.0 differs from 0.0, and nan equals nan
            elif kind in _SEQUENCES:
                key.append((kind, len(value)))
                todo += value[::-1]
            elif kind is torch.SymInt:
                key.append((kind, comparable(value)))
                add_number(value)
            elif kind is slice:
                key.append(slice)
                todo += (value.step, value.stop, value.start)
            else:
                raise _NotRepeatableError
        if not inputs:
            raise _NotRepeatableError
        if numbers:
            key.append(compat.version_of(inputs[0]))
        return inputs, numbers, tuple(key)

    def _facts_of(self, fake: Any) -> _Facts:
        known = self._facts.get(id(fake))
        if known is None or (known.numbers and known.version != compat.version_of(fake)):
            traced = self._tracer.tensor_tracker.get(fake)
            if traced is None or traced.constant is not None or not is_simple(fake):
                raise _NotRepeatableError
            known = _facts_of(fake)
            if not self._writes:
                self._facts[id(fake)] = known
        return known

    def _repeat(self, recipe: _Recipe, inputs: list[Any], given: list[torch.SymInt]) -> Any:
        """Add the nodes of a recipe to the trace, and return the call's result."""
        tracer = self._tracer
        tensors, numbers = list(inputs), list(given)
        nodes = [tracer.tensor_tracker[fake].proxy.node for fake in inputs]

        def argument(value: _Index | _Number) -> Any:
            if type(value) is _Number:
                return node_of_number(numbers[value.number], tracer)
            found = nodes[value.number]
            if found is None:  # an item of a tuple, whose node torch's `track_tensor_tree` created
                found = tracer.tensor_tracker[tensors[value.number]].proxy.node
            return found

        def made(item: _Tensor) -> Any:
            base = None if item.base is None else tensors[item.base]
            if item.numbers is None:
                needs_grad = item.edge is not None
                fake = self._fakes.like(item.pattern, base, requires_grad=needs_grad)
                own = ()
            else:
                numbers.extend(map(another_number, item.new))
                sizes = _mapped(item.numbers, _NUMBER, lambda each: numbers[each.number])
                fake = self._fakes.with_numbers(item.pattern, base, sizes)
                own = _symbolic(*sizes)
            if item.edge is not None:
                share_gradient_edge(fake, item.edge)
            tensors.append(fake)
            if not self._writes:
                self._facts[id(fake)] = item.facts._replace(fake=fake, numbers=own)
            return fake

        for step in recipe.steps:
            self._count(step.before)
            guard = contextlib.nullcontext()
            if step.excluded is not None:
                guard = compat.excluding(step.excluded)
            with self._calls.originating(step.function), guard:
                args = _mapped(step.args, _ARGUMENT, argument)
                kwargs = _mapped(step.kwargs, _ARGUMENT, argument)
                node = self._calls.create_node(tracer, step.function, args, kwargs)
                compat.count_gradients(step.gradients)
                result = _mapped(step.result, _TENSOR, made)
                if type(step.result) is _Tensor:
                    nodes.append(node)
                    self._calls.set_result(node, result, tracer)
                else:
                    nodes += [None] * (len(tensors) - len(nodes))
                    compat.track_tensor_tree(
                        result, Proxy(node, tracer), constant=None, tracer=tracer
                    )
        self._count(recipe.after)
        return _mapped(recipe.result, _INDEX, lambda index: tensors[index.number])

    def _count(self, counts: _Counts) -> None:
        add_counts(self._tracer, counts.functions)
        self._tracer.torch_fn_metadata = counts.last
        compat.count_gradients(counts.gradients)


class _Recording:
    """Records the operators of one call that torch runs."""

    def __init__(
        self, fakes: Fakes, tracer: Any, inputs: list[Any], numbers: list[torch.SymInt]
    ) -> None:
        self._fakes = fakes
        self._tracer = tracer
        # Weak references, because functions of torch copy a result if there are other references.
        self._indexes = {id(fake): (weakref.ref(fake), _Index(i)) for i, fake in enumerate(inputs)}
        self._count = len(inputs)
        self._numbers = {id(number.node): i for i, number in enumerate(numbers)}
        self._kept = list(numbers)  # keeps ids from being reused
        self._expected = 0  # nodes that a repetition adds
        self._bases: dict[int, int] = {}
        for i, fake in enumerate(inputs):
            self._bases.setdefault(fake.untyped_storage()._cdata, i)
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
        """Record an operator before its node is created; `created` nodes of SymInts were added."""
        self._expected += created + 1
        if self._is_spoiled or function.namespace not in BUILTIN:
            self._is_spoiled = True
            return
        try:
            args, kwargs = self._argument(args), self._argument(kwargs)
        except _NotRepeatableError:
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
            described = self._result(result)
        except _NotRepeatableError:
            self._is_spoiled = True
            return
        created = gradients - self._gradients
        self._steps[-1] = self._steps[-1]._replace(gradients=created, result=described)
        if type(described) is not _Tensor:
            self._expected += len(described)  # each item has a node
        self._mark()

    def recipe(self, result: Any) -> _Recipe | None:
        """Return the recipe of the recorded call with its result; None if it is not repeatable."""
        if self._is_spoiled or not self._steps:
            return None
        added = len(self._tracer.graph.nodes) - self._length
        if compat.autograd_state() != self._state or added != self._expected:
            return None
        try:
            described = self._argument(result)
            return _Recipe(self._steps, self._since_mark(), described, bool(self._kept))
        except _NotRepeatableError:
            return None

    def _argument(self, value: Any) -> Any:
        kind = type(value)
        if kind is compat.FakeTensor:
            known = self._indexes.get(id(value))
            if known is None or known[0]() is not value:
                raise _NotRepeatableError
            return known[1]
        if kind in _CONSTANTS or kind is float:
            return value
        if kind in _SEQUENCES:
            return (list if kind is list else tuple)([self._argument(each) for each in value])
        if kind is dict:
            return {name: self._argument(each) for name, each in value.items()}
        if kind is torch.SymInt and id(value.node) in self._numbers:
            return _Number(self._numbers[id(value.node)])
        raise _NotRepeatableError

    def _result(self, value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)([self._result(each) for each in value])
        known = self._indexes.get(id(value))
        if not is_simple(value) or (known is not None and known[0]() is value):
            raise _NotRepeatableError
        if not value.is_inference() and value._version:  # an operator wrote to its result
            raise _NotRepeatableError
        number = self._count
        self._count += 1
        self._indexes[id(value)] = (weakref.ref(value), _Index(number))
        storage = value.untyped_storage()._cdata
        base: int | None = self._bases.setdefault(storage, number)
        pattern, edge = self._fakes.detached(value), None
        if value.requires_grad:
            edge = self._fakes.like(pattern, None, requires_grad=True)
            share_gradient_edge(edge, value)
        facts = _facts_of(value)
        new: list[torch.SymInt] = []
        for each in facts.numbers:
            if self._numbers.setdefault(id(each.node), len(self._kept)) == len(self._kept):
                self._kept.append(each)
                new.append(each)
        numbers = None
        if facts.numbers:
            sizes = (value.shape, value.stride(), value.storage_offset())
            numbers = self._argument(sizes)
        base = None if base == number else base
        return _Tensor(pattern, edge, base, facts._replace(fake=None), new, numbers)


_CONSTANTS = PLAIN_TYPES | {type(...)}
_SEQUENCES = frozenset((tuple, list, torch.Size, immutable_list))


class _Facts(NamedTuple):
    """The properties of a fake tensor on which the trace of a call depends."""

    fake: Any
    key: tuple[Any, ...]
    numbers: tuple[torch.SymInt, ...]  # its symbolic ints
    version: int | None  # of the ShapeEnv, if there are symbolic ints


def _facts_of(fake: Any) -> _Facts:
    sizes = (fake.shape, fake.stride(), fake.storage_offset())
    bits = (fake.requires_grad, fake.is_conj(), fake.is_neg(), fake.is_inference())
    others = (fake.dtype, fake.device, *bits, fake.is_quantized)
    nbytes = comparable(fake.untyped_storage().nbytes())
    numbers = _symbolic(*sizes)
    if not numbers:
        return _Facts(fake, (*sizes, nbytes, *others), (), None)
    expressions = tuple(map(comparable, (*sizes[0], *sizes[1], sizes[2])))
    return _Facts(fake, (expressions, nbytes, *others), numbers, compat.version_of(fake))


def _symbolic(sizes: Any, strides: Any, offset: Any) -> tuple[torch.SymInt, ...]:
    """Return the symbolic ints among the sizes, strides and offset of a tensor."""
    return tuple([each for each in (*sizes, *strides, offset) if type(each) is torch.SymInt])


_INDEX, _NUMBER, _TENSOR = ((_Index,), (_Number,), (_Tensor,))
_ARGUMENT = (_Index, _Number)


def _mapped(value: Any, kinds: tuple[type, ...], function: Callable[[Any], Any]) -> Any:
    """Return a copy of nested lists, tuples and dicts with `function(item)` for some types."""
    if type(value) in kinds:
        return function(value)
    if type(value) in (list, tuple):
        return type(value)([_mapped(item, kinds, function) for item in value])
    if type(value) is dict:
        return {name: _mapped(item, kinds, function) for name, item in value.items()}
    return value


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
    """Return whether a call without a value may change a state on which later calls depend.

    True for `autograd.grad` too: it reads the graph of autograd, which repetitions do not extend.
    """
    if call.meta.get("example_value") is not None and call.target is not torch.autograd.grad:
        return False
    name = getattr(call.target, "__name__", "")
    return name not in _HARMLESS and not name.startswith(("_check", "_assert", "sym_constrain"))


# Functions without a value. A state that they set is part of keys, or prevents repetitions.
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

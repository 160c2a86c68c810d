"""Describe the results of calls on fake tensors, and create equal results for later equal calls."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node
from torch.fx.immutable_collections import immutable_list

from fxpress._graphs.trace.fakes import Fakes, is_simple
from fxpress._graphs.trace.proxy_calls import PLAIN_TYPES
from fxpress._torch import tracing as compat
from fxpress._torch.fakes import known_layout
from fxpress._torch.symbols import another_number, comparable


class NotRepeatableError(Exception):
    """Raised for a call that torch's code has to run each time."""


class Index(NamedTuple):
    """The number of a tensor in a call: arguments come first, then results of operators."""

    number: int


class Number(NamedTuple):
    """The number of a symbolic int in a call: ints of arguments come first, then new ones."""

    number: int


class Result(NamedTuple):
    """A fake tensor that an operator returned."""

    pattern: Any  # a detached copy of the fake tensor
    edge: Any  # a tensor with the same gradient edge; None: no gradients are required
    base: int | None  # the index of a tensor with the same storage; None: a new storage
    facts: Any  # see `Facts`
    numbers: Any  # sizes, strides and offset with a Number for each symbolic int; None: no symbols


class Facts(NamedTuple):
    """The properties of a fake tensor on which the trace of a call depends."""

    fake: Any
    key: tuple[Any, ...]
    numbers: tuple[torch.SymInt, ...]  # its symbolic ints
    version: int | None  # of the ShapeEnv, if there are symbolic ints


def facts_of(fake: Any) -> Facts:
    """Return the facts of a fake tensor for which `is_simple` holds."""
    sizes = numbers_of(fake)
    bits = (fake.requires_grad, fake.is_conj(), fake.is_neg(), fake.is_inference())
    others = (fake.dtype, fake.device, *bits, fake.is_quantized)
    nbytes = comparable(fake.untyped_storage().nbytes())
    numbers = symbolic(*sizes)
    if not numbers:
        return Facts(fake, (*sizes, nbytes, *others), (), None)
    expressions = tuple(map(comparable, (*sizes[0], *sizes[1], sizes[2])))
    # A call may compute facts about a layout. This adds nodes if the facts are not known yet.
    key = (expressions, nbytes, known_layout(fake), *others)
    return Facts(fake, key, numbers, compat.version_of(fake))


def numbers_of(fake: Any) -> tuple[Any, Any, Any]:
    """Return the sizes, strides and storage offset of a tensor."""
    return fake.shape, fake.stride(), fake.storage_offset()


def symbolic(sizes: Any, strides: Any, offset: Any) -> tuple[torch.SymInt, ...]:
    """Return the symbolic ints among the sizes, strides and offset of a tensor."""
    return tuple([each for each in (*sizes, *strides, offset) if type(each) is torch.SymInt])


CONSTANTS = PLAIN_TYPES | {type(...)}
SEQUENCES = frozenset((tuple, list, torch.Size, immutable_list))


def add_arguments(
    call: Node, env: dict[Node, Any], key: list[Any], add: Callable[[Any], bool]
) -> None:
    """Add the arguments of a call to its key.

    `env` has the values of nodes. `add` adds a tensor or a symbolic int, and returns False for
    other values.
    """
    key += call.kwargs
    todo = [*call.args, *call.kwargs.values()][::-1]
    while todo:
        value = todo.pop()
        if type(value) is Node:
            value = env[value]
        kind = type(value)
        if kind in CONSTANTS:
            key += (kind, value)
        elif kind is float:
            key.append(repr(value))  # -0.0 differs from 0.0, and nan equals nan
        elif kind in SEQUENCES:
            key.append((kind, len(value)))
            todo += value[::-1]
        elif kind is slice:
            key.append(slice)
            todo += (value.step, value.stop, value.start)
        elif not add(value):
            raise NotRepeatableError


class CallValues:
    """Describes the values of one call that torch runs."""

    def __init__(
        self, fakes: Fakes, inputs: Sequence[Any], numbers: Sequence[torch.SymInt]
    ) -> None:
        self._fakes = fakes
        # Weak references, because functions of torch copy a result that something else refers to.
        self._indexes = {id(fake): (weakref.ref(fake), Index(i)) for i, fake in enumerate(inputs)}
        self._count = len(inputs)
        self._numbers = {id(number.node): i for i, number in enumerate(numbers)}
        self._given = len(numbers)
        self._kept = list(numbers)  # keeps ids from being reused
        self._bases: dict[int, int] = {}
        for i, fake in enumerate(inputs):
            self._bases.setdefault(fake.untyped_storage()._cdata, i)

    @property
    def new_numbers(self) -> list[torch.SymInt]:
        """The symbolic ints that no argument had."""
        return self._kept[self._given :]

    def number(self, value: torch.SymInt) -> Number:
        """Return the Number of a symbolic int."""
        number = self._numbers.setdefault(id(value.node), len(self._kept))
        if number == len(self._kept):
            self._kept.append(value)
        return Number(number)

    def argument(self, value: Any) -> Any:
        """Return an argument with an Index for each tensor and a Number for each symbolic int."""
        kind = type(value)
        if kind is compat.FakeTensor:
            known = self._indexes.get(id(value))
            if known is None or known[0]() is not value:
                raise NotRepeatableError
            return known[1]
        if kind in CONSTANTS or kind is float:
            return value
        if kind in SEQUENCES:
            return (list if kind is list else tuple)([self.argument(each) for each in value])
        if kind is dict:
            return {name: self.argument(each) for name, each in value.items()}
        if kind is torch.SymInt and id(value.node) in self._numbers:
            return Number(self._numbers[id(value.node)])
        raise NotRepeatableError

    def result(self, value: Any) -> Any:
        """Describe an operator's result, with a Result for each tensor; the tensors get numbers."""
        if type(value) in (list, tuple):
            return type(value)([self.result(each) for each in value])
        known = self._indexes.get(id(value))
        if not is_simple(value) or (known is not None and known[0]() is value):
            raise NotRepeatableError
        if not value.is_inference() and value._version:  # an operator wrote to its result
            raise NotRepeatableError
        number = self._count
        self._count += 1
        self._indexes[id(value)] = (weakref.ref(value), Index(number))
        base: int | None = self._bases.setdefault(value.untyped_storage()._cdata, number)
        # The pattern has a separate storage, because later code may resize the result's storage.
        pattern, edge = self._fakes.detached(value), None
        if value.requires_grad:
            edge = self._fakes.result(pattern, None, edge=value)
        facts = facts_of(value)
        for each in facts.numbers:
            self.number(each)
        numbers = None
        if facts.numbers:
            numbers = self.argument(numbers_of(value))
        else:
            pattern = self._fakes.result(pattern, None)
        base = None if base == number else base
        return Result(pattern, edge, base, facts._replace(fake=None), numbers)


class RepeatedValues:
    """Creates the tensors of a call that fxpress repeats.

    Attributes:
        tensors: the arguments, then the created tensors.
        numbers: the symbolic ints, as numbered by `CallValues`.
    """

    def __init__(
        self,
        fakes: Fakes,
        inputs: Sequence[Any],
        numbers: Sequence[torch.SymInt],
        new: Iterable[torch.SymInt],
    ) -> None:
        self._fakes = fakes
        self.tensors = list(inputs)
        self.numbers = [*numbers, *map(another_number, new)]

    def value(self, item: Result | Number) -> Any:
        """Return a symbolic int, or create a fake tensor."""
        return self.numbers[item.number] if type(item) is Number else self.create(item)

    def create(self, item: Any) -> Any:
        """Create the fake tensor that a Result describes, and append it to `tensors`."""
        base = None if item.base is None else self.tensors[item.base]
        numbers = None
        if item.numbers is not None:
            numbers = mapped(item.numbers, (Number,), self.value)
        made = self._fakes.result(item.pattern, base, edge=item.edge, numbers=numbers)
        self.tensors.append(made)
        return made


def mapped(value: Any, kinds: tuple[type, ...], function: Callable[[Any], Any]) -> Any:
    """Copy nested lists, tuples and dicts, with `function(item)` for items of a type in `kinds`."""
    if type(value) in kinds:
        return function(value)
    if type(value) in (list, tuple):
        return type(value)([mapped(item, kinds, function) for item in value])
    if type(value) is dict:
        return {name: mapped(item, kinds, function) for name, item in value.items()}
    return value

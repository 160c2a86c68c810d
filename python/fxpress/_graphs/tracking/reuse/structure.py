"""Describe everything that a call of a module can read, to compare two calls.

A description consists of plain values. In it, numbers stand for the modules, tensors and containers
in a module, in the order in which they are found. An object at several paths has one number, so a
description also shows which paths lead to the same object.
"""

from __future__ import annotations

import collections
import enum
from collections.abc import Iterable
from typing import Any

import torch

from fxpress._torch import reuse as compat
from fxpress._torch.reuse import VariableTracker, variables
from fxpress._torch.symbols import comparable

_PLAIN_TYPES = frozenset((int, float, complex, str, bytes, bool, type(None)))
_DICTS = frozenset((dict, collections.OrderedDict))
_SEQUENCES = frozenset((list, tuple))
_SETS = frozenset((set, frozenset))
_CONSTANT_TYPES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)


class NotReusable(Exception):  # noqa: N818
    """Raised if a call must be traced; the message is the reason in `reuse_report()`."""


class ModuleStructure:
    """The description (`key`) of a module and of all modules in it."""

    def __init__(self, module: torch.nn.Module) -> None:
        # Modules, tensors and containers, in the order of their numbers.
        self.objects: list[Any] = []
        self.numbers: dict[int, int] = {}  # id of an object -> its number
        # (number of the module, name) of plain attributes, and the attributes' values. The key does
        # not contain the values: equal calls may differ in attributes that no call reads, such as
        # the index of a layer.
        self.names: list[tuple[int, str]] = []
        self.values: list[tuple[type, Any]] = []
        self.others: list[int] = []  # ids of other objects, such as enum members and functions
        self._storages: dict[int, int] = {}
        self._parts: list[Any] = []
        pending = [module]
        self._number(module)
        while pending:
            pending.extend(self._describe(pending.pop()))
        self.key = tuple(self._parts)

    def _number(self, item: Any) -> bool:
        """Number an object, and return whether it is new."""
        known = self.numbers.get(id(item))
        if known is not None:
            self._parts.append(known)
            return False
        self.numbers[id(item)] = len(self.objects)
        self.objects.append(item)
        return True

    def _describe(self, module: torch.nn.Module) -> Iterable[torch.nn.Module]:
        kind = type(module)
        if any(vars(base).get("__slots__") for base in kind.__mro__):
            raise NotReusable(f"{kind.__name__} has __slots__")
        number = self.numbers[id(module)]
        own = vars(module)
        self._parts += (kind, tuple(own))
        found: list[torch.nn.Module] = []
        for name, value in own.items():
            if _is_plain(value):
                self.names.append((number, name))
                self.values.append((type(value), _plain(value)))
                if type(value) not in _PLAIN_TYPES:
                    self.others.append(id(value))
            elif type(value) is dict and not value:
                self._parts.append(dict)
            else:
                self._value(value, found)
        return found[::-1]

    def _value(self, value: Any, found: list[torch.nn.Module]) -> None:
        parts = self._parts
        if isinstance(value, torch.nn.Module):
            if self._number(value):
                parts.append("module")
                found.append(value)
        elif isinstance(value, torch.Tensor):
            if self._number(value):
                parts.append(_tensor_key(value, self._storages))
        elif type(value) in _DICTS:
            if self._number(value):
                parts += (type(value), len(value))
                for key, item in value.items():
                    parts.append(_mark(key))
                    self._value(item, found)
        elif type(value) in _SEQUENCES:
            if type(value) is tuple or self._number(value):
                parts += (type(value), len(value))
                for item in value:
                    self._value(item, found)
        elif type(value) in _SETS:
            if self._number(value):
                parts += (type(value), frozenset(map(_mark, value)))
        elif isinstance(value, _CONSTANT_TYPES):
            parts.append(value)
        else:
            parts.append(_mark(value))
            if type(value) not in _PLAIN_TYPES:
                self.others.append(id(value))


def _is_plain(value: Any) -> bool:
    """Return whether a value is a constant or an enum member, which is compared by equality."""
    return type(value) in _PLAIN_TYPES or isinstance(value, enum.Enum)


def _plain(value: Any) -> Any:
    """Return a key of a constant. The keys of 0.0 and -0.0 differ, and NaN has one key."""
    return repr(value) if isinstance(value, (float, complex)) else value


def _tensor_key(tensor: torch.Tensor, storages: dict[int, int]) -> tuple[Any, ...]:
    if tensor.layout is not torch.strided or type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        raise NotReusable(f"the module's state contains a {tensor.layout} {type(tensor).__name__}")
    storage = storages.setdefault(storage_id(tensor), len(storages))
    return (
        type(tensor),
        tensor.dtype,
        tensor.device,
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
        storage,
        tensor.requires_grad,
        tensor.is_leaf,
        tensor.is_conj(),
        tensor.is_neg(),
        tensor.grad is not None,
        len(vars(tensor)) and tuple((name, _mark(value)) for name, value in vars(tensor).items()),
    )


def storage_id(tensor: torch.Tensor) -> int:
    """Return a number that identifies the storage of a tensor."""
    found: int = tensor._typed_storage()._cdata
    return found


def tensor_facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the properties of a fake tensor that a traced program can read."""
    return (
        type(tensor),
        tensor.dtype,
        tensor.device,
        _sizes(tensor.shape),
        _sizes(tensor.stride()),
        *_sizes((tensor.storage_offset(),)),
        tensor.requires_grad,
        tensor.is_leaf,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def _sizes(sizes: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(size if type(size) is int else comparable(size) for size in sizes)


def _mark(value: Any) -> Any:
    """Return a key: equal constants have equal keys; the key of any other object is its id."""
    return (type(value), _plain(value)) if _is_plain(value) else id(value)


class CallArguments:
    """The description (`key`) of a call's arguments, and the tensors and containers among them."""

    def __init__(
        self, args: Iterable[VariableTracker], kwargs: dict[str, VariableTracker], effects: Any
    ) -> None:
        self._effects = effects
        self.tensors: list[VariableTracker] = []  # distinct tensors and symbolic numbers
        self.containers: list[tuple[VariableTracker, tuple[VariableTracker, ...]]] = []
        self._numbers: dict[int, int] = {}
        self._storages: dict[int, int] = {}
        self._parts: list[Any] = [tuple(kwargs)]
        for each in args:
            self._describe(each)
        for each in kwargs.values():
            self._describe(each)
        self.key = tuple(self._parts)

    def unchanged(self) -> bool:
        """Return whether the containers among the arguments still have the same items."""
        return all(compat.items_of(container) == items for container, items in self.containers)

    def _describe(self, variable: VariableTracker) -> None:
        if isinstance(variable, compat.LazyVariableTracker):
            if not variable.is_realized():  # its source and value identify it
                self._parts += (variable.source, id(variable.peek_value()))
                return
            variable = variable.realize()
        parts = self._parts
        known = self._numbers.get(id(variable))
        if known is not None:
            parts.append(known)
            return
        self._numbers[id(variable)] = len(self._numbers)
        kind = type(variable)
        if kind is compat.TensorVariable:
            parts.append(self._tensor(variable))
        elif kind is compat.SymNodeVariable:
            parts += (kind, variable.source, *self._symbols(variable.sym_num))
            self.tensors.append(variable)
        elif kind in (variables.TupleVariable, variables.ListVariable, variables.ConstDictVariable):
            items = compat.items_of(variable)
            parts += (kind, len(items), variable.source)
            if compat.is_changed(variable):
                raise NotReusable("the program changed an argument before the call")
            self.containers.append((variable, items))
            for item in items:
                self._describe(item)
        elif variable.is_python_constant():
            value = variable.as_python_constant()
            if not _is_plain(value) and not isinstance(value, _CONSTANT_TYPES):
                raise NotReusable(f"an argument is a {type(value).__name__}")
            parts += (kind, type(value), _plain(value))
        else:
            raise NotReusable(f"an argument is a {kind.__name__}")

    def _tensor(self, variable: Any) -> tuple[Any, ...]:
        node = variable.proxy.node
        example = node.meta.get("example_value")
        if type(example) is not compat.FakeTensor or example.layout is not torch.strided:
            found = f"{getattr(example, 'layout', '')} {type(example).__name__}".lstrip()
            raise NotReusable(f"an argument is a {found}, not a strided FakeTensor")
        if example.constant is not None:
            raise NotReusable("an argument is a tensor whose value is known")
        if variable in self._effects.store_attr_mutations:
            raise NotReusable("the program sets attributes of an argument")
        self.tensors.append(variable)
        storage = storage_id(example)
        same_node = self._numbers.setdefault(id(node), len(self._numbers))
        return (
            variable.class_type,
            variable.source,
            variable._is_name_set,
            same_node,
            self._storages.setdefault(storage, len(self._storages)),
            *self._symbols(example),
            *tensor_facts(example),
        )

    def _symbols(self, value: Any) -> Iterable[Any]:
        """Yield, for each symbolic size of `value`, a key and then a number for its SymNode."""
        for size in compat.symbols_of(value):
            yield comparable(size)
            yield self._numbers.setdefault(id(size.node), len(self._numbers))

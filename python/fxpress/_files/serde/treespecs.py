"""Convert tree specs to and from their text in files, without importing modules."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from enum import Enum
from typing import Any

import torch

from fxpress._files.serde.damage import UnknownNameError, damage_is_named
from fxpress._files.serde.limits import Budget, LimitError
from fxpress._torch import serde as compat

_FACTORIES = frozenset(
    {
        *(bool, bytes, complex, dict, float, frozenset, int, list, set, str, tuple),
        *(Counter, OrderedDict, defaultdict, deque, torch.Tensor),
    }
)
_DEFAULTDICT_KEYS = {"default_factory_module", "default_factory_name", "dict_context"}


class TreeSpecWriter:
    """Writes tree specs. `fields` collects named tuples in the specs: stored name -> fields."""

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}

    def __call__(self, spec: Any) -> str:
        text = compat.dump_treespec(spec)
        self._collect(spec)
        return text

    def _collect(self, spec: Any) -> None:
        waiting = [spec]
        while waiting:
            at = waiting.pop()
            waiting.extend(reversed(at.children()))
            if at.type is None or not compat.is_namedtuple(at.type):
                continue
            name = compat.SUPPORTED_SERIALIZED_TYPES[at.context].serialized_type_name
            fields = self.fields.setdefault(name, at.context._fields)
            if fields != at.context._fields:
                raise compat.SerializeError(
                    f"Two named tuples are written as {name!r}: one has the fields {fields}, the "
                    f"other {at.context._fields}."
                )


def _imported(module: str, path: str) -> Any:
    """Return a class of a module that is already imported; UnknownNameError for other names."""
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    if not isinstance(found, type):
        raise UnknownNameError(
            f"a tree spec names {module}:{path}, which is not a class of an imported module",
            f"{module}.{path}",
        )
    return found


def _enum_member(value: dict[str, Any]) -> Any:
    if "__enum__" not in value:
        return value
    module, _, path = str(value.get("fqn")).partition(":")
    cls = _imported(module, path)
    if not issubclass(cls, Enum):
        raise compat.SerializeError(f"a tree spec names {module}:{path}, which is not an Enum")
    return cls[value["name"]]


def _defaultdict_context(stored: Any) -> Any:
    if not isinstance(stored, dict) or set(stored) != _DEFAULTDICT_KEYS:
        raise compat.SerializeError(f"the context of a defaultdict is damaged: {stored!r}")
    module, name = stored["default_factory_module"], stored["default_factory_name"]
    factory = _imported(str(module), str(name))
    # A defaultdict calls its factory for missing keys, so a file may choose only known functions.
    if factory not in _FACTORIES and factory not in compat.SUPPORTED_SERIALIZED_TYPES:
        raise compat.SerializeError(
            f"a tree spec names {module}:{name} as the default_factory of a defaultdict; expected "
            "a type such as list or int, or a class that is registered with pytree"
        )
    return [factory, stored["dict_context"]]


def _spec(stored: Any, budget: Budget) -> Any:
    if not isinstance(stored, dict) or not {"type", "context", "children_spec"} <= set(stored):
        raise compat.SerializeError("expected a type, a context and children in a tree spec")
    name, context, children = stored["type"], stored["context"], stored["children_spec"]
    if not isinstance(children, list):
        raise compat.SerializeError(
            f"expected the children of a tree spec to be a list, found a {type(children).__name__}"
        )
    if name is None and context is None and not children:
        return compat.LEAF_SPEC
    cls = compat.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name) if isinstance(name, str) else None
    if cls is None:
        raise UnknownNameError(f"Deserializing {name} in pytree is not registered.", str(name))
    read = compat.SUPPORTED_SERIALIZED_TYPES[cls].from_dumpable_context
    if cls is defaultdict:
        context = _defaultdict_context(context)
    elif read is not None:
        context = read(context)
    else:
        context = budget.load_json(context, "a tree spec", object_hook=_enum_member)
    return compat.make_treespec(cls, context, [_spec(child, budget) for child in children])


def load_treespec(text: str, budget: Budget) -> Any:
    """Return the tree spec of a text, as `torch.utils._pytree.treespec_loads` does."""
    if text.count("children_spec") > budget.limits.elements:
        raise LimitError("elements", "a tree spec")
    with damage_is_named("a tree spec"):
        protocol, stored = budget.load_json(text, "a tree spec")
        if protocol != compat.schema.TREESPEC_VERSION:
            expected = compat.schema.TREESPEC_VERSION
            raise compat.SerializeError(
                f"expected protocol {expected} of a tree spec, found {protocol!r}"
            )
        return _spec(stored, budget)

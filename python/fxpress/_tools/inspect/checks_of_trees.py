"""Look at tree specs: how inputs and results are nested."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

from fxpress import _native
from fxpress._base.errors import Error
from fxpress._files.format.fields import DEPTH, a_list, an_object
from fxpress._files.format.torch_facts import schema
from fxpress._tools.inspect.findings import Found

_PROTOCOL = 1
_MOST_NODES = 1 << 20
_TUPLE, _DICT = "builtins.tuple", "builtins.dict"
_OTHERS = ("builtins.list", "collections.OrderedDict", "collections.deque", "torch.Size")
_NAMING = ("collections.defaultdict", "collections.namedtuple")  # their contexts name classes
_TORCHS = ("torch.return_types.", "torch.fx.immutable_collections.")
_FIELDS = {"type", "context", "children_spec"}
# A document with a text in a field of the rule: a key, the name of an argument.
_DOCUMENTS: dict[str, Callable[[str], Any]] = {
    "Argument": lambda text: {"as_string_to_argument": {text: {"as_none": True}}},
    "ModuleCallSignature": lambda text: {
        **{"inputs": [], "outputs": [], "in_spec": "[]", "out_spec": "[]"},
        "forward_arg_names": [text],
    },
}


def check_tree(text: str, is_of_inputs: bool) -> Found:
    """Yield what is wrong with a tree spec, and the classes that have to be registered.

    Args:
        text: as torch writes it.
        is_of_inputs: its keys become names of arguments and parts of guards.
    """
    if _native.is_nested_deeper(text, DEPTH):
        yield f"a tree spec has more than {DEPTH} values within each other", False
        return
    if text.count("children_spec") > _MOST_NODES:
        yield f"a tree spec has more than {_MOST_NODES} parts", False
        return
    try:
        protocol, root = json.loads(text)
        if protocol != _PROTOCOL:
            yield f"the protocol of a tree spec is {protocol!r}, not {_PROTOCOL}", False
            return
        if is_of_inputs:
            yield from _names_of_arguments(root)
        waiting = [root]
        while waiting:
            at = an_object(waiting.pop())
            if not set(at) >= _FIELDS:
                yield "a tree spec lacks a type, a context or children", False
                return
            children = a_list(at["children_spec"])
            waiting += children
            yield from _node(at["type"], at["context"], children, is_of_inputs)
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        yield f"a tree spec is damaged: {e!r}", False


def _node(kind: Any, context: Any, children: list[Any], is_of_inputs: bool) -> Found:
    if kind is None:
        if context is not None or children:
            yield "a leaf of a tree spec has children", False
        return
    known = (_TUPLE, _DICT, *_OTHERS, *_NAMING)
    if kind not in known and not str(kind).startswith(_TORCHS):
        yield f"a tree spec names {kind!r}, which has to be registered with pytree", True
        return
    if kind in _NAMING:
        yield f"a tree spec names a class in a {kind}: {str(context)[:80]}", True
        return
    read = json.loads(context) if isinstance(context, str) else context
    if "__enum__" in str(context):
        yield f"a tree spec names a class: {str(context)[:80]}", True
    elif is_of_inputs and isinstance(read, list):
        for key in read:
            if isinstance(key, str) and not _passes(key, "Argument"):
                yield f"{key[:80]!r} cannot be a key of an input", False


def _names_of_arguments(root: Any) -> Found:
    """Look at the names of keyword arguments, where a tree is one of (args, kwargs)."""
    children = root["children_spec"]
    kinds = [each["type"] for each in children]
    if root["type"] == _TUPLE and kinds == [_TUPLE, _DICT]:
        for name in json.loads(children[1]["context"]):
            if isinstance(name, str) and not _passes(name, "ModuleCallSignature"):
                yield f"{name[:80]!r} cannot be the name of an argument", False


@functools.lru_cache(1024)
def _passes(text: str, kind: str) -> bool:
    """Return whether a text keeps the rule that a field of a type of the schema has for texts.

    Native code asks the rules by name only where torch is there; it reads documents anywhere.
    """
    try:
        schema().read(json.dumps(_DOCUMENTS[kind](text)).encode(), kind)
    except (ValueError, Error):
        return False
    return True

"""Check strings in a file by rules of `csrc/schema/gate.h`, such as the rule "Identifier".

The native code checks the strings in schema documents. This module checks the keys in tree specs
and in example inputs, names in pickled states, and names of records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from fxpress import _native
from fxpress._files.serde.limits import Budget
from fxpress._torch import serde as compat

_CHILD_BYTES = 300  # estimated bytes that a check allocates for each item of the example inputs
_SHOWN = 120  # how many characters of a value an error quotes


def check(rule: str, text: Any, field: str, error: type[Exception] = compat.SerializeError) -> None:
    """Raise `error` for a string that breaks a rule, or for a value that is not a str."""
    if not isinstance(text, str):
        raise error(f"{field}: expected a string, got a {type(text).__name__}")
    if not _native.passes_gate(rule, text):
        shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
        raise error(f"{field}: {shown!r} {_native.gate_rules()[rule]}")


def check_names(rule: str, names: Iterable[Any], field: str) -> None:
    """Raise SerializeError for the first string that breaks a rule."""
    refused = _native.first_refused(rule, names)
    if refused is not None:
        check(rule, refused, field)


def check_example_inputs(examples: Any, budget: Budget) -> None:
    """Raise SerializeError for keys in example inputs that would be unsafe in a guard's code."""
    waiting = [examples]
    while waiting:
        at = waiting.pop()
        inside = at
        if type(at) not in (list, tuple):  # lists and tuples have positions instead of keys
            children = compat.keyed_children(at) or ()
            for step, _ in children:
                key = getattr(step, "key", None)
                check("Key", key if isinstance(key, str) else str(step), "example_inputs")
            inside = [child for _, child in children]
        if inside:
            budget.charge(_CHILD_BYTES * len(inside), "example_inputs")
            waiting.extend(inside)


def check_input_keys(spec: Any) -> None:
    """Raise SerializeError for keys in a tree spec of inputs that would be unsafe in code."""
    children = spec.children()
    is_call = spec.type is tuple and len(children) == 2 and children[1].type is dict
    if is_call and children[0].type is tuple:
        for name in children[1].context:
            check("ArgumentName", name, "in_spec")
    waiting = [spec]
    while waiting:
        at = waiting.pop()
        waiting.extend(at.children())
        for key in _keys_of(at.context):
            check("Key", key, "in_spec")


def _keys_of(context: Any) -> Iterator[str]:
    """Yield the strings in the context of a tree spec, including strings in nested lists."""
    waiting = [context] if isinstance(context, (list, tuple)) else []
    while waiting:
        for item in waiting.pop():
            if isinstance(item, str):
                yield item
            elif isinstance(item, (list, tuple)):
                waiting.append(item)

"""Read operators' arguments in a file's JSON: the values, graphs and constants in them."""

from __future__ import annotations

from typing import Any

_MOST_ITEMS = 200  # how many items of a list are shown
_NO_VALUES = ("as_graph", "as_custom_obj", "as_operator", "as_string", "as_strings")


def values_in(value: Any) -> list[tuple[bool, str]]:
    """Return (whether it is a tensor, name) for each value to which an argument refers."""
    if type(value) is dict and len(value) == 1:  # most arguments are a tensor or a constant
        ((kind, held),) = value.items()
        if type(held) is not list and type(held) is not dict:
            return [(False, held)] if kind == "as_name" and type(held) is str else []
        if kind == "as_tensor" and type(held) is dict and type(held.get("name")) is str:
            return [(True, held["name"])]
    found = []
    waiting = [(False, value)]
    while waiting:
        is_tensor, held = waiting.pop()
        if type(held) is list:
            waiting += [(is_tensor, each) for each in reversed(held)]
        elif type(held) is dict:
            for key, inner in held.items():
                if key in ("name", "as_name") and type(inner) is str:
                    found.append((is_tensor, inner))
                elif key not in _NO_VALUES:
                    waiting.append(("tensor" in key, inner))
    return found


def bodies_in(value: Any) -> list[Any]:
    """Return the graphs in an operator's argument."""
    return [held["graph"] for held in _held_in(value, "as_graph")]


def operators_in(value: Any) -> list[str]:
    """Return the operators in an operator's argument, except operators inside graphs."""
    return [held for held in _held_in(value, "as_operator") if type(held) is str]


def _held_in(value: Any, kind: str) -> list[Any]:
    """Return the values of all fields named `kind` in an argument, except fields inside graphs."""
    if type(value) is dict and len(value) == 1 and "as_tensor" in value:
        return []
    found = []
    waiting = [value]
    while waiting:
        held = waiting.pop()
        if type(held) is list:
            waiting += reversed(held)
        elif type(held) is dict:
            if held.get(kind) is not None:
                found.append(held[kind])
            waiting += [inner for key, inner in held.items() if key != "as_graph"]
    return found


def readable(value: Any) -> Any:
    """Return an argument's value for display; an object with a name is replaced by the name."""
    if type(value) is list:
        return [readable(each) for each in value[:_MOST_ITEMS]]
    if type(value) is dict and len(value) == 1:
        return readable(*value.values())
    if type(value) is dict and type(value.get("name")) is str:
        return value["name"]
    return value

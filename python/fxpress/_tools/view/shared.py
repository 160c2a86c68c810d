"""Describe the parts that many nodes of a graph have in common. Nobody may change them."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from fxpress import _native
from fxpress._files.format.fields import a_list, a_text, an_object
from fxpress._files.format.package import InspectionError
from fxpress._files.format.tensors import size_of, tensor_of
from fxpress._tools.inspect.arguments import readable, values_in

Attribute = dict[str, Any]
_LONGEST = 400  # characters of an attribute
_DEPTH = 60  # objects within each other, of nodes that a node was made from
_Key = TypeVar("_Key")
_Made = TypeVar("_Made")


class Once(dict[_Key, _Made]):
    """What a function makes of keys; each is made when it is first asked for, and kept.

    Args:
        make: the function.
    """

    def __init__(self, make: Callable[[_Key], _Made]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: _Key) -> _Made:
        made = self[key] = self._make(key)
        return made


class TensorFacts(NamedTuple):
    """What is shown of a tensor, and its bytes; 0: not known."""

    attributes: list[Attribute]
    bytes: int


NO_TENSOR = TensorFacts([], 0)


def cut(text: str, longest: int = _LONGEST) -> str:
    """Return a text, or its beginning where it is long."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def pairs(values: dict[str, str]) -> list[Attribute]:
    """Return attributes of those texts that are not empty."""
    return [{"key": key, "value": value} for key, value in values.items() if value]


def describe_kind(kind: str) -> list[Attribute]:
    """Return the attribute that names the kind of an input."""
    return pairs({"kind": kind.replace("_", " ")})


def describe_persistent(value: Any) -> list[Attribute]:
    """Return the attribute that tells whether a buffer is persistent."""
    return pairs({"persistent": str(value)})


def describe_target(target: Any) -> tuple[str, Attribute]:
    """Return the label of an operator, and the attribute that names it."""
    text = a_text(target)
    plain = text.removeprefix("torch.ops.")
    parts = plain.split(".")  # library, name and overload
    label = parts[1] if text.startswith("torch.ops.") and len(parts) > 1 else parts[-1]
    return label, {"key": "target", "value": plain}


def describe_argument(name: str, value: Any) -> tuple[list[Attribute], list[str]]:
    """Return the attribute that shows an argument, and the values that it takes instead."""
    if values := names_in(value):
        return [], values
    shown = cut(str(readable(value)))
    if not shown and type(value) is dict and len(value) == 1 and "" in value.values():
        return [{"key": name, "value": shown}], []  # the empty text is a constant, too
    return pairs({name: shown}), []


def names_in(value: Any) -> list[str]:
    """Return the names of the values of a graph in arguments or results."""
    return [name for _, name in values_in(value)]


def _source(stack: Any) -> list[Attribute]:
    lines = [line.strip() for line in a_text(stack).strip().split("\n")]
    places = [line for line in lines if line.startswith("File ")]
    return pairs(
        {
            "source": cut("\n".join(lines[-2:])) if places else "",
            "stack": "\n".join(cut(line) for line in lines) if len(places) > 1 else "",
        }
    )


def _history(text: Any) -> list[Attribute]:
    """Return the attribute with the nodes that a node was made from, the latest first."""
    if text in ("", "[]"):
        return []
    if _native.is_nested_deeper(a_text(text).encode(), _DEPTH):
        raise InspectionError("from_node is nested too deeply")
    lines = []
    waiting = deque(a_list(json.loads(text)))
    while waiting:
        each = an_object(waiting.popleft())
        target = f" ({each['target']})" if each.get("target") else ""
        line = f"{each.get('name') or 'a node'}{target}, {each.get('pass_name') or 'unknown'}"
        lines.append(cut(line))
        waiting += a_list(each.get("from_node") or [])
    return pairs({"from": "\n".join(lines)})


def _told(key: str) -> Callable[[Any], list[Attribute]]:
    return lambda text: pairs({key: cut(a_text(text))}) if text else []


def describe_tensor(meta: Any) -> TensorFacts:
    """Return what is shown of a tensor."""
    tensor = tensor_of(meta)
    strides = [str(size_of(stride)) for stride in a_list(meta["strides"])]
    device = an_object(meta["device"])
    index = device.get("index")
    shown = {
        "shape": f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]",
        "strides": ", ".join(strides),
        "device": a_text(device["type"]) + ("" if index is None else f":{index}"),
        "bytes": "" if tensor.bytes is None else f"{tensor.bytes:,}",
    }
    return TensorFacts(pairs(shown), tensor.bytes or 0)


# Field of a node's metadata -> what makes the attributes that show it, in their order.
METADATA: dict[str, Callable[[Any], list[Attribute]]] = {
    "stack_trace": _source,
    "from_node": _history,
    "torch_fn": _told("torch function"),
    "custom": _told("custom"),
}

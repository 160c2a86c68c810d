"""Make the parts that many nodes of a graph have in common once."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from fxpress._inspection.fields import a_list, a_text, an_object
from fxpress._inspection.tensors import size_of, tensor_of
from fxpress._view.facts import TAG

Attribute = dict[str, Any]
_NO_REFERENCES = 2  # the version of marshal's format in which equal values have equal bytes
_LONGEST = 400  # characters of an attribute
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


class Shared:
    """What nodes of a graph have in common. Nobody may change it.

    Attributes:
        kinds: of an input -> the attribute that names it, if any.
        targets: an operator -> its label, and the attribute that names it.
        constants: name, type and value of an argument -> its attribute. No floats: 0.0 is -0.0.
        arguments: place and name of an argument that is a value -> the id of its place, and its
            description, to which Model Explorer adds what is known of the value.
        sources: a stack trace -> the attributes that tell it.
        others: key of an attribute and text -> the attribute.
    """

    def __init__(self) -> None:
        self.kinds = Once(_kind)
        self.targets = Once(_target)
        self.constants = Once(_constant)
        self.arguments = Once(_argument)
        self.sources = Once(_source)
        self.others = Once(_other)
        self._tensors: dict[bytes, TensorFacts] = {}

    def tensor(self, meta: dict[str, Any]) -> TensorFacts:
        """Return what is shown of a tensor."""
        fields = (meta["dtype"], meta["sizes"], meta["strides"], meta["device"])
        key = marshal.dumps(fields, _NO_REFERENCES)  # equal for equal values
        known = self._tensors.get(key)
        if known is None:
            known = self._tensors[key] = _tensor(meta)
        return known


def cut(text: str, longest: int = _LONGEST) -> str:
    """Return a text, or its beginning where it is long."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


def pairs(values: dict[str, str]) -> list[Attribute]:
    """Return attributes of those texts that are not empty."""
    return [{"key": key, "value": value} for key, value in values.items() if value]


def _kind(kind: str) -> list[Attribute]:
    return pairs({"kind": kind.replace("_", " ")})


def _target(target: Any) -> tuple[str, Attribute]:
    text = a_text(target)
    plain = text.removeprefix("torch.ops.")
    parts = plain.split(".")  # library, name and overload
    label = parts[1] if text.startswith("torch.ops.") and len(parts) > 1 else parts[-1]
    return label, {"key": "target", "value": plain}


def _constant(argument: tuple[str, type, Any]) -> Attribute:
    name, _, value = argument
    return {"key": name, "value": cut(str(value))}


def _argument(argument: tuple[int, str]) -> tuple[str, Attribute]:
    place, name = str(argument[0]), argument[1]
    return place, {"id": place, "attrs": [{"key": TAG, "value": name}]}


def _source(stack: Any) -> list[Attribute]:
    lines = [line.strip() for line in a_text(stack).strip().split("\n")]
    places = [line for line in lines if line.startswith("File ")]
    return pairs(
        {
            "source": cut("\n".join(lines[-2:])) if places else "",
            "stack": "\n".join(cut(line) for line in lines) if len(places) > 1 else "",
        }
    )


def _other(told: tuple[str, Any]) -> Attribute:
    key, text = told
    return {"key": key, "value": cut(a_text(text))}


def _tensor(meta: dict[str, Any]) -> TensorFacts:
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

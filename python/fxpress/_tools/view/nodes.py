"""Define the graph of a program for views: its nodes, their values, arguments and modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from fxpress._files.format.tensors import Tensor

_LONGEST = 400  # how many characters of a text are shown


def cut(text: str, longest: int = _LONGEST) -> str:
    """Return a text, or its beginning if it is long."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


@dataclasses.dataclass(slots=True, eq=False)
class TensorFacts:
    """A tensor. Do not modify it: values with equal descriptions share one object."""

    tensor: Tensor  # dtype, sizes and bytes
    examples: list[int | None]  # the sizes for the example inputs; None: a size is unknown
    strides: list[int | str]  # ints, or expressions as text
    device: str  # such as "cpu" or "cuda:0"

    def shown(self) -> dict[str, str]:
        """Return the properties that are shown."""
        size = self.tensor.bytes
        shown = {
            "shape": str(self.tensor),
            "strides": ", ".join(map(str, self.strides)),
            "device": self.device,
            "bytes": "" if size is None else f"{size:,}",
        }
        return {key: text for key, text in shown.items() if text}

    def sizes(self) -> list[int] | None:
        """Return the sizes for the example inputs; None if one is unknown."""
        sizes = [size for size in self.examples if size is not None]
        return sizes if len(sizes) == len(self.examples) else None


class Value(NamedTuple):
    """A value that a node computes; `tensor` is None if the file does not describe a tensor."""

    name: str
    tensor: TensorFacts | None

    @property
    def bytes(self) -> int | None:
        """The bytes of the value's elements; None if they are unknown."""
        return None if self.tensor is None else self.tensor.tensor.bytes


class Ancestor(NamedTuple):
    """A node from which a pass created another node; each field may be ""."""

    name: str
    target: str
    made_by: str

    def __str__(self) -> str:
        target = f" ({self.target})" if self.target else ""
        return cut(f"{self.name or 'a node'}{target}, {self.made_by or 'unknown'}")


class Argument(NamedTuple):
    """An argument that is a value: output number `output` of `node`."""

    name: str
    node: Node
    output: int

    @property
    def value(self) -> Value:
        """The value that is the argument."""
        return self.node.results[self.output]


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """An input of a graph, an operator, or the outputs."""

    id: str  # such as "input 0" or "node 0"; "output" for the outputs
    label: str  # the text on the node
    layer: str  # the layer in which it is drawn, such as "layers/0: Block"
    module: str  # the path of its module; "" for the root
    name: str = ""  # its name in the program, if the name is known
    # The operator, such as "aten.add.Tensor"; None for inputs and the outputs.
    target: str | None = None
    # For an input: its kind in the signature, its name in the state, whether it is persistent.
    kind: str = ""
    state: str = ""
    persistent: str = ""
    # Name and text of each argument that is not a value.
    constants: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    arguments: list[Argument] = dataclasses.field(default_factory=list)  # the values that it takes
    results: list[Value] = dataclasses.field(default_factory=list)  # the values that it computes
    source: str = ""  # its line of source code
    stack: str = ""  # its stack trace
    ancestors: tuple[Ancestor, ...] = ()  # the nodes that it was created from, the latest first
    torch_function: str = ""  # from its metadata
    custom: str = ""  # from its metadata
    bodies: list[Graph] = dataclasses.field(default_factory=list)  # graphs among its arguments

    def identity(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts that identify the node, except its arguments."""
        yield from self._known("target", "name", "kind", "state", "persistent")

    def origin(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts that describe the origin of the node."""
        yield from self._known("source", "stack")
        if self.ancestors:
            yield "from", "\n".join(map(str, self.ancestors))
        if self.torch_function:
            yield "torch function", self.torch_function
        yield from self._known("custom")

    def _known(self, *fields: str) -> Iterator[tuple[str, str]]:
        return ((field, text) for field in fields if (text := getattr(self, field)))

    def result_bytes(self) -> int | None:
        """Return the bytes of all results; None if there are none, or some bytes are unknown."""
        sizes = [value.bytes for value in self.results]
        known = [size for size in sizes if size is not None]
        return sum(known) if sizes and len(known) == len(sizes) else None


@dataclasses.dataclass(slots=True, eq=False)
class Graph:
    """A graph of a program, or of the body of an operator.

    Attributes:
        id: the name of the program; for a body, its path.
        nodes: inputs, operators and outputs, in this order.
        layers: layer -> its attributes to show.
    """

    id: str
    nodes: list[Node] = dataclasses.field(default_factory=list)
    layers: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)

"""The graph of a program as it is viewed: typed nodes, their values, arguments and modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from fxpress._files.format.tensors import Tensor

_LONGEST = 400  # characters of a text that is shown


def cut(text: str, longest: int = _LONGEST) -> str:
    """Return a text, or its beginning where it is long."""
    return text if len(text) <= longest else text[: longest - 3] + "..."


@dataclasses.dataclass(slots=True, eq=False)
class TensorFacts:
    """A tensor. Values with equal descriptions share one; nobody may change it."""

    tensor: Tensor  # type, sizes and bytes
    examples: list[int | None]  # the sizes for the example inputs; None: one is not known
    strides: list[int | str]  # ints, or expressions as text
    device: str  # such as "cpu" or "cuda:0"

    def shown(self) -> dict[str, str]:
        """Return what is shown of it."""
        size = self.tensor.bytes
        shown = {
            "shape": str(self.tensor),
            "strides": ", ".join(map(str, self.strides)),
            "device": self.device,
            "bytes": "" if size is None else f"{size:,}",
        }
        return {key: text for key, text in shown.items() if text}

    def sizes(self) -> list[int] | None:
        """Return the sizes for the example inputs; None where one is not known."""
        sizes = [size for size in self.examples if size is not None]
        return sizes if len(sizes) == len(self.examples) else None


class Value(NamedTuple):
    """A value that a node computes; `tensor` is None where the file does not describe one."""

    name: str
    tensor: TensorFacts | None

    @property
    def bytes(self) -> int | None:
        """The bytes of its items; None: they are not known."""
        return None if self.tensor is None else self.tensor.tensor.bytes


class Ancestor(NamedTuple):
    """A node that another was made from, its operator, and the pass that did it; or empty texts."""

    name: str
    target: str
    made_by: str

    def __str__(self) -> str:
        target = f" ({self.target})" if self.target else ""
        return cut(f"{self.name or 'a node'}{target}, {self.made_by or 'unknown'}")


class Argument(NamedTuple):
    """An argument that is a value: the output with this number of another node."""

    name: str
    node: Node
    output: int

    @property
    def value(self) -> Value:
        """The value."""
        return self.node.results[self.output]


@dataclasses.dataclass(slots=True, eq=False)
class Node:
    """An input of a graph, an operator, or the outputs."""

    id: str  # "input 0", "node 0", and so on; "output"
    label: str  # what is written on it
    layer: str  # the layer that it is drawn in, such as "layers/0: Block"
    module: str  # the path of the module that it is in; the root's is empty
    name: str = ""  # its name in the program, where that is known
    # The operator, such as "aten.add.Tensor"; None: this is not an operator.
    target: str | None = None
    # Of an input, as its signature has them; or empty.
    kind: str = ""
    state: str = ""
    persistent: str = ""
    # Name and text of each argument that is not a value.
    constants: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    arguments: list[Argument] = dataclasses.field(default_factory=list)  # the values that it takes
    results: list[Value] = dataclasses.field(default_factory=list)  # the values that it computes
    source: str = ""  # the line of source that it is from
    stack: str = ""  # the calls that led to it
    ancestors: tuple[Ancestor, ...] = ()  # the nodes that it was made from, the latest first
    torch_function: str = ""  # of its metadata
    custom: str = ""  # of its metadata
    # The graphs that the operator is given.
    bodies: list[Graph] = dataclasses.field(default_factory=list)

    def identity(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts of what the node is, apart from its arguments."""
        yield from self._known("target", "name", "kind", "state", "persistent")

    def origin(self) -> Iterator[tuple[str, str]]:
        """Yield names and texts of where the node is from."""
        yield from self._known("source", "stack")
        if self.ancestors:
            yield "from", "\n".join(map(str, self.ancestors))
        if self.torch_function:
            yield "torch function", self.torch_function
        yield from self._known("custom")

    def _known(self, *fields: str) -> Iterator[tuple[str, str]]:
        return ((field, text) for field in fields if (text := getattr(self, field)))

    def result_bytes(self) -> int | None:
        """Return the bytes of all results; None where there are none or one is not known."""
        sizes = [value.bytes for value in self.results]
        known = [size for size in sizes if size is not None]
        return sum(known) if sizes and len(known) == len(sizes) else None


@dataclasses.dataclass(slots=True, eq=False)
class Graph:
    """A graph of a program, or of the body of an operator.

    Attributes:
        id: the name of the program; of a body, the path to it.
        nodes: inputs, operators and outputs, in this order.
        layers: what is shown of each layer.
    """

    id: str
    nodes: list[Node] = dataclasses.field(default_factory=list)
    layers: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)

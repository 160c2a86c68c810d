"""Draw the result of `split_module`: its partitions, and the values that pass between them."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

import torch
from torch.fx import GraphModule, Node

from fxpress._base.observing.text import bytes_text, counted_text
from fxpress._graphs.partition.callback import operations
from fxpress._graphs.partition.state import StateReader, byte_count, element_count, meta_value

if TYPE_CHECKING:
    from graphviz import Digraph
    from torch.export import ExportGraphSignature

# A longer list of texts is cut and ends in a count: an exported model may have hundreds of inputs.
_MOST_TEXTS = 6


@overload
def draw(
    split: GraphModule,
    *,
    format: None = None,
    signature: ExportGraphSignature | None = None,
    state_dict: Mapping[str, Any] | None = None,
) -> Digraph: ...


@overload
def draw(
    split: GraphModule,
    *,
    format: Literal["svg"],
    signature: ExportGraphSignature | None = None,
    state_dict: Mapping[str, Any] | None = None,
) -> str: ...


def draw(
    split: GraphModule,
    *,
    format: Literal["svg"] | None = None,
    signature: ExportGraphSignature | None = None,
    state_dict: Mapping[str, Any] | None = None,
) -> Digraph | str:
    """Draw the partitions of a split module and the values between them.

    A box shows a partition: its name, the number of its operations, the elements and bytes of its
    state (parameters, buffers and constant tensors), and the names of its inputs and outputs. State
    that two partitions use is counted in both. An arrow stands for all values that one partition
    passes to another. It shows the number of these values, their bytes if known, and the type and
    shape of values with symbolic sizes. Equal splits give equal pictures.

    Drawing needs the extra `draw`: `pip install 'fxpress[draw]'`. If Graphviz's program `dot` is on
    the PATH, it renders an SVG, otherwise the program of the package `graphviz-pure` does. Both
    draw the same boxes, arrows and texts in the same order, but positions and sizes depend on the
    version of Graphviz and on how it measures text. torch has no such function.

    Args:
        split: The result of `split_module` or `split_module_simple`.
        format: None to get a `Digraph`, which can be edited; "svg" to get the rendered picture.
        signature: If the graph module of an exported program was split: the `graph_signature` of
            this program, which lists the inputs that are state.
        state_dict: The program's `state_dict`, which shows which parameters are tied.

    Returns:
        A `graphviz.Digraph`, which notebooks display, or the text of an SVG file. The methods of
        `Digraph` that render (`pipe`, `render`, `view`) need the system's `dot`.

    Raises:
        TypeError: If `split` is not a `GraphModule`.
        ValueError: If `format` is neither None nor "svg".
        ImportError: If the package `graphviz` is missing.
        RuntimeError: If `format` is "svg", and a renderer is missing or fails.

    Example:
        >>> from fxpress import partition
        >>> from fxpress.split_module import split_module
        >>> stages = split_module(graph_module, None, partition.balanced(graph_module, 2))
        >>> partition.draw(stages, format="svg")[:5]
        '<?xml'
    """
    if not isinstance(split, GraphModule):
        raise TypeError(f"draw: split must be a GraphModule, got {type(split).__name__}")
    if format not in (None, "svg"):
        raise ValueError(f'draw: format must be None or "svg", got {format!r}')
    graphviz, pictures = _import_graphviz()
    state = StateReader(split, signature, state_dict)
    # Boxes get ids such as "p0", because Graphviz would parse a colon in a partition's name.
    calls = split.graph.find_nodes(op="call_module")
    calls = [call for call in calls if isinstance(_module(split, call), GraphModule)]
    partitions = {call: f"p{number}" for number, call in enumerate(calls)}
    graph = pictures.Picture("partitions", node_attr={"shape": "box"})
    for call, box in partitions.items():
        graph.node(box, graphviz.escape(_describe_partition(split, call, state)))
    for call, box in partitions.items():
        for source, values in _values_by_source(split, call, partitions).items():
            graph.edge(partitions[source], box, graphviz.escape(_describe_values(values)))
    return graph if format is None else pictures.svg_of(graph.source)


def _import_graphviz() -> tuple[Any, Any]:
    """Return the modules `graphviz` and `pictures`; ImportError without the extra `draw`."""
    try:
        import graphviz

        from fxpress._base import pictures
    except ImportError as error:
        raise ImportError(
            "fxpress.partition.draw needs the package graphviz: pip install 'fxpress[draw]'"
        ) from error
    return graphviz, pictures


def _module(split: GraphModule, call: Node) -> Any:
    return split.get_submodule(str(call.target))


def _describe_partition(split: GraphModule, call: Node, state: StateReader) -> str:
    module = _module(split, call)
    count = sum(1 for _ in operations(module))
    # The modules that a partition calls are its children. All other state is among its inputs.
    tensors = [*module.parameters(), *module.buffers()]
    for source in call.all_input_nodes:
        if source.op in ("get_attr", "placeholder"):
            tensors += state.state_of(source)
    distinct = {id(tensor): tensor for tensor in tensors}.values()
    elements = sum(element_count(tensor) or 0 for tensor in distinct)
    size = bytes_text(sum(byte_count(tensor) or 0 for tensor in distinct))
    lines = [str(call.target), f"{counted_text(count, 'node')}, {elements:,} parameters ({size})"]
    if inputs := module.graph.find_nodes(op="placeholder"):
        lines.append(f"in: {_names(inputs)}")
    if outputs := module.graph.output_node().all_input_nodes:
        lines.append(f"out: {_names(outputs)}")
    return "\n".join(lines)


def _values_by_source(
    split: GraphModule, call: Node, partitions: Mapping[Node, str]
) -> dict[Node, list[Any]]:
    """Return the example values that `call` receives from each other partition."""
    values: dict[Node, list[Any]] = {}
    inputs = _module(split, call).graph.find_nodes(op="placeholder")
    for argument, placeholder in zip(call.args, inputs, strict=False):
        source = argument
        # Values of a partition with several outputs pass through getitem nodes.
        while isinstance(source, Node) and source.target is operator.getitem:
            source = source.args[0]
        if source in partitions:
            values.setdefault(source, []).append(meta_value(placeholder))
    return values


def _describe_values(values: list[Any]) -> str:
    lines = [counted_text(len(values), "value")]
    known = 0
    symbolic: list[str] = []
    for leaf in _leaves(values):
        if isinstance(leaf, torch.Tensor):
            size = byte_count(leaf)
            if size is None:
                symbolic.append(_type_and_shape(leaf))
            else:
                known += size
        elif isinstance(leaf, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            symbolic.append(str(leaf))
        elif leaf is None:  # no metadata for one value: the sum is unknown
            return lines[0]
    if known:
        lines.append(bytes_text(known))
    return "\n".join([*lines, *_shorten(symbolic)])


def _leaves(values: Iterable[Any]) -> list[Any]:
    """Return the leaves of nested lists, tuples and dictionaries, in order."""
    leaves: list[Any] = []
    pending = list(values)[::-1]
    while pending:
        value = pending.pop()
        if isinstance(value, (list, tuple)):
            pending += value[::-1]
        elif isinstance(value, dict):
            pending += list(value.values())[::-1]
        else:
            leaves.append(value)
    return leaves


def _type_and_shape(tensor: torch.Tensor) -> str:
    shape = ", ".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')} [{shape}]"


def _names(nodes: list[Node]) -> str:
    return ", ".join(_shorten([node.name for node in nodes]))


def _shorten(texts: list[str]) -> list[str]:
    if len(texts) <= _MOST_TEXTS:
        return texts
    return [*texts[:_MOST_TEXTS], f"{len(texts) - _MOST_TEXTS} more"]

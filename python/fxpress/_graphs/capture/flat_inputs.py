"""Make the placeholders of a captured graph for the inputs of its caller."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxpress._torch.capture import (
    AttrSource,
    GetItemSource,
    LocalSource,
    fake_input,
)

_FLAT_ARGUMENTS = "flat_args"  # as ModuleToTrace.forward calls them


def check_dims(flat_inputs: list[Any], dynamic_dims: list[set[int]]) -> None:
    """Raise AssertionError unless there is a set of dimensions for each input."""
    if len(dynamic_dims) != len(flat_inputs):
        raise AssertionError(
            f"there are dynamic dimensions of {len(dynamic_dims)} inputs, "
            f"and {len(flat_inputs)} inputs"
        )


def input_meta(
    value: Any, dynamic_dims: set[int], original: Node | None, fake_mode: Any
) -> dict[str, Any]:
    """Return the meta of the placeholder for one flat input."""
    before = original.meta if original is not None else {}
    meta = {key: item for key, item in before.items() if key != "val"}
    if fake_mode is not None and isinstance(value, torch.Tensor):
        meta["val"] = fake_input(fake_mode, value, dynamic_dims)
    else:
        meta["val"] = getattr(value, "val", value)  # a wrapped int has one
    return meta


def capture_value(module: GraphModule, position: int, placeholder: Node, source: Any) -> str | None:
    """Make a value from outside the inputs (such as a closure) an attribute; return its name."""
    if source is None or isinstance(source, GetItemSource):
        return None
    value = captured_value(placeholder)
    if value is None:
        return None
    name = f"_captured_{position}"
    if isinstance(value, torch.Tensor):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)
    return name


def attribute_of_input(source: Any) -> tuple[int, list[str]] | None:
    """Return the flat input and the attribute path at which Dynamo found a value, or None."""
    path: list[str] = []
    while isinstance(source, AttrSource):
        path.insert(0, source.member)
        source = source.base
    if not (path and isinstance(source, GetItemSource)):
        return None
    base = source.base
    is_flat = isinstance(base, LocalSource) and base.is_input and base.local_name == _FLAT_ARGUMENTS
    return (source.index, path) if is_flat else None


def read_from_input(module: GraphModule, held: Node, index: int, path: list[str]) -> None:
    """Make a graph read a value from an input of its caller instead of from its attribute."""
    graph = module.graph
    value = graph.find_nodes(op="placeholder")[index]
    with graph.inserting_before(held):
        for member in path:
            value = graph.call_function(getattr, (value, member))
    value.meta = held.meta
    held.replace_all_uses_with(value)
    graph.erase_node(held)
    value.name = held.name
    delattr(module, held.target)


def captured_value(placeholder: Node) -> Any:
    """Return the recorded value of a placeholder, or None."""
    value = placeholder.meta.get("val")
    return placeholder.meta.get("example_value") if value is None else value

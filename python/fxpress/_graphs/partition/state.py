"""Find the state (parameters, buffers, constant tensors) of each node of a graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import GraphModule, Node

if TYPE_CHECKING:
    from torch.export import ExportGraphSignature


class StateReader:
    """Finds the state tensors of the nodes of one graph."""

    def __init__(
        self,
        m: GraphModule,
        signature: ExportGraphSignature | None = None,
        state_dict: Mapping[str, Any] | None = None,
        state_inputs: Collection[str] = (),
    ) -> None:
        self._m = m
        self._lifted = dict.fromkeys(state_inputs, "")  # placeholder -> its key in the state_dict
        if signature is not None:
            self._lifted |= signature.inputs_to_parameters
            self._lifted |= signature.inputs_to_buffers
            self._lifted |= signature.inputs_to_lifted_tensor_constants
        self._state_dict = state_dict or {}

    def state_of(self, node: Node) -> Iterable[torch.Tensor]:
        """Return the state tensors that a `get_attr`, `call_module` or placeholder node reads."""
        if node.op == "get_attr":
            return _tensors(_attribute(self._m, str(node.target)))
        if node.op == "call_module":
            return _tensors(self._m.get_submodule(str(node.target)))
        if node.op == "placeholder":
            return self._lifted_tensors(node)
        return ()

    def _lifted_tensors(self, node: Node) -> Iterable[torch.Tensor]:
        value = meta_value(node)
        if node.name in self._lifted:
            return _tensors(self._state_dict.get(self._lifted[node.name], value))
        # In graphs of Dynamo and strict export, a parameter's example value is an nn.Parameter.
        return (value,) if isinstance(value, torch.nn.Parameter) else ()


def meta_value(node: Node) -> Any:
    """Return the example value of `node` that export or Dynamo recorded, or None."""
    value = node.meta.get("val")
    return node.meta.get("example_value") if value is None else value


def element_count(tensor: torch.Tensor) -> int | None:
    """Return the number of elements of `tensor`; None if a dimension is symbolic."""
    # Uses prod() instead of numel(), which would add a guard on the symbols.
    return prod(tensor.shape) if all(type(size) is int for size in tensor.shape) else None


def byte_count(tensor: torch.Tensor) -> int | None:
    """Return the size in bytes of the elements of `tensor`; None if a dimension is symbolic."""
    elements = element_count(tensor)
    return None if elements is None else elements * tensor.element_size()


def _attribute(root: torch.nn.Module, path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(root.get_submodule(owner), name)


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, torch.nn.Module):
        return chain(value.parameters(), value.buffers())
    return ()

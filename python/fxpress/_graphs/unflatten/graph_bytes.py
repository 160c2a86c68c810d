"""Convert graphs, and objects that only graphs hold, to bytes of torch's `GraphPickler`."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from fxpress._torch import export as torch_export
from fxpress._torch import fx as torch_fx


class _Pickler(torch_export.GraphPickler):  # type: ignore[misc]
    """A pickler that leaves real tensors and modules outside, because the caller pickles them."""

    outside: list[Any]

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.fx.Graph):
            return _graph, super().reducer_override(torch_export.graph_carrier(obj))
        if isinstance(obj, torch.fx.GraphModule):
            return _graph_module, super().reducer_override(obj)
        is_tensor = isinstance(obj, torch.Tensor)
        if is_tensor and torch_fx.is_traceable_wrapper_subclass(obj) and _is_fake(obj):
            return _subclass, _parts(obj)
        if isinstance(obj, torch.nn.Module) or (is_tensor and not _is_fake(obj)):
            self.outside.append(obj)
            return _from_outside, (len(self.outside) - 1, self._unpickle_state)
        if isinstance(obj, torch_fx.TreeSpec) and obj.is_leaf():
            return _leaf_spec, ()  # to make another leaf is deprecated
        return super().reducer_override(obj)


def _is_fake(tensor: Any) -> bool:
    """Return whether a tensor is fake, or a subclass with fake tensors inside."""
    open_ = [tensor]
    while open_:
        part = open_.pop()
        if torch_fx.is_fake(part):
            return True
        if torch_fx.is_traceable_wrapper_subclass(part):
            open_ += [getattr(part, name) for name in part.__tensor_flatten__()[0]]
    return False


def _parts(tensor: Any) -> tuple[Any, ...]:
    """Return the parts that a tensor subclass is made of, and its metadata."""
    names, context = tensor.__tensor_flatten__()
    inner = {name: getattr(tensor, name) for name in names}
    return type(tensor), inner, context, tuple(tensor.shape), tensor.stride(), tensor.requires_grad


def _subclass(kind: Any, inner: Any, context: Any, size: Any, stride: Any, grad: bool) -> Any:
    made = kind.__tensor_unflatten__(inner, context, torch.Size(size), stride)
    return made.requires_grad_() if grad else made


def _graph(unpickle: Any, args: tuple[Any, ...]) -> torch.fx.Graph:
    return unpickle(*args).graph


def _graph_module(unpickle: Any, args: tuple[Any, ...]) -> torch.fx.GraphModule:
    """Read a GraphModule, and generate its code, which belongs to its class and is not pickled."""
    module: torch.fx.GraphModule = unpickle(*args)
    module.recompile()
    return module


def _leaf_spec() -> Any:
    return torch_fx.pytree.tree_structure(None, is_leaf=lambda _: True)


def _from_outside(index: int, state: Any) -> Any:
    return state.fake_mode.outside[index]


def dump(value: Any) -> tuple[bytes, list[Any]]:
    """Return the bytes of a value with graphs, and the tensors and modules that it refers to."""
    outside: list[Any] = []
    kind: Any = type(_Pickler.__name__, (_Pickler,), {"outside": outside})
    return kind.dumps(value, torch_export.PICKLE_ALL), outside


def load(data: bytes, outside: list[Any]) -> Any:
    """Return the value that `dump` was given, with fake values of a new mode."""
    mode: Any = torch_export.fake_mode_of_its_own()
    mode.outside = outside  # the mode is all that reaches the functions that read a pickle
    try:
        return torch_export.GraphPickler.loads(data, mode)
    finally:
        del mode.outside

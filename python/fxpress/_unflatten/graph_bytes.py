"""Graphs, and what only they hold, as bytes in the form of torch's `GraphPickler`."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from fxpress import _torch_compat


class _Pickler(_torch_compat.GraphPickler):  # type: ignore[misc]
    """Leaves real tensors and modules outside: whoever pickles the bytes knows them already."""

    outside: list[Any]

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.fx.Graph):
            return _graph, super().reducer_override(_torch_compat.graph_carrier(obj))
        if isinstance(obj, torch.fx.GraphModule):
            return _graph_module, super().reducer_override(obj)
        fake = isinstance(obj, _torch_compat.FakeTensor)
        if isinstance(obj, (torch.Tensor, torch.nn.Module)) and not fake:
            self.outside.append(obj)
            return _from_outside, (len(self.outside) - 1, self._unpickle_state)
        return super().reducer_override(obj)


def _graph(unpickle: Any, args: tuple[Any, ...]) -> torch.fx.Graph:
    return unpickle(*args).graph


def _graph_module(unpickle: Any, args: tuple[Any, ...]) -> torch.fx.GraphModule:
    """The code of a GraphModule is its class's, which no pickle holds."""
    module: torch.fx.GraphModule = unpickle(*args)
    module.recompile()
    return module


def _from_outside(index: int, state: Any) -> Any:
    return state.fake_mode.outside[index]


def dump(value: Any) -> tuple[bytes, list[Any]]:
    """The bytes of a value with graphs in it, and the tensors and modules that it refers to."""
    outside: list[Any] = []
    kind: Any = type(_Pickler.__name__, (_Pickler,), {"outside": outside})
    return kind.dumps(value, _torch_compat.PICKLE_ALL), outside


def load(data: bytes, outside: list[Any]) -> Any:
    """What `dump` was given, with fake values of a mode of its own."""
    mode: Any = _torch_compat.fake_mode_of_its_own()
    mode.outside = outside  # the mode is all that reaches the functions that read a pickle
    try:
        return _torch_compat.GraphPickler.loads(data, mode)
    finally:
        del mode.outside

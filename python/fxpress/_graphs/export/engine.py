"""Run the module of a program on the native engine, without generating Python code."""

from __future__ import annotations

import inspect
import types
from typing import Any

import torch
import torch.fx

from fxpress._graphs import engine
from fxpress._torch import fx as torch_fx


def run_on_engine(module: torch.fx.GraphModule) -> None:
    """Set a `forward` that runs the graph, so that the module's Python code is not generated."""
    type.__setattr__(type(module), "_wrapped_call", torch_fx.wrapped_call(type(module)))
    vars(module)["forward"] = types.MethodType(_forward, module)  # setattr would generate the code


def _forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    if torch_fx.is_fx_symbolic_tracing() or torch.compiler.is_dynamo_compiling():
        # Dynamo does not call the descriptor that generates the code, so read `_code` here.
        self._code  # noqa: B018  (generates the code)
        return type(self).forward(self, *args, **kwargs)
    outputs = engine.run(self, self.graph, tuple(_flat(self, args, kwargs)))
    return torch_fx.pytree.tree_unflatten(outputs, self._out_spec) if self._out_spec else outputs


def _flat(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the leaves of the arguments, in the order of the program's inputs."""
    spec = module._in_spec
    names, positional, keys, _ = torch_fx.tree_inputs(module.graph._codegen) or ([], [], None, True)
    if len(args) != len(positional) or kwargs.keys() != set(keys or ()):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
        bound = signature.bind(*args, **kwargs)
        args, rest = bound.args[: len(positional)], bound.args[len(positional) :]
        kwargs = dict(zip(keys or (), rest, strict=True))
    inputs = list(args) if keys is None else (list(args), kwargs)
    return torch_fx.fx_pytree.tree_flatten_spec(inputs, spec)  # type: ignore[no-any-return]

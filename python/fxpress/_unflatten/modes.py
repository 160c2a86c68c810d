"""train() and eval(): what the graph allows."""

from __future__ import annotations

from typing import Any

import torch

from fxpress._errors import UnsupportedError


def _baked_mode(node: torch.fx.Node) -> bool | None:
    """The training flag that an operator was traced with; None: it has none, or it is computed."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or node.op != "call_function":
        return None
    for position, argument in enumerate(schema.arguments):
        if argument.name not in ("train", "training", "is_training"):
            continue
        value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
        return value if isinstance(value, bool) else None
    return None


def check(module: Any, mode: bool) -> None:
    """Refuse a mode that the graph of this module contradicts.

    An operator such as dropout or batch norm has its mode written into the graph when it is
    exported. A module without any runs the same in both.

    Raises:
        UnsupportedError: an operator was exported in the other mode.
    """
    if not isinstance(mode, bool):
        raise ValueError("training mode is expected to be boolean")
    for fqn, part in module.named_modules():
        graph = part.__dict__.get("graph")
        if not isinstance(graph, torch.fx.Graph):
            continue
        for node in graph.nodes:
            baked = _baked_mode(node)
            if baked is not None and baked is not mode:
                where = f"{fqn or 'the root module'}"
                raise UnsupportedError(
                    f"Calling {'train' if mode else 'eval'}() is not supported: {node} in {where} "
                    f"({node.target}) was exported with training={baked}. Export the model in the "
                    "mode that you need"
                )

"""Check train() and eval() against the modes that the graph was exported in.

Export stores the mode of operators such as dropout or batch norm in the graph, so setting another
mode later has no effect. The mode is read from the flags of operators that were traced in torch's
own modules, where the flag equals the module's `training`. Flags of other operators are ignored: a
user's `forward` may call `F.dropout(x, training=True)` in either mode.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fxpress._base.errors import UnsupportedError

_setting = threading.local()

# Class in nn_module_stack -> the argument that decides whether the flag matters. A probability of 0
# drops nothing in either mode. Without running statistics, the batch's statistics are always used.
_DROPOUT = dict.fromkeys(
    ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"), "p"
)
_RECURRENT = dict.fromkeys(("RNN", "LSTM", "GRU"), "dropout")
_BATCH_NORM = dict.fromkeys(
    ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"), "running_mean"
)
_FOLLOW = {
    f"torch.nn.modules.{file}.{name}": decides
    for file, classes in (
        ("dropout", _DROPOUT),
        ("rnn", _RECURRENT),
        ("batchnorm", _BATCH_NORM),
        ("activation", {"RReLU": None}),
    )
    for name, decides in classes.items()
}


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    """Return the arguments of an operator's call by name; empty for any other node."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or node.op != "call_function":
        return {}
    names = [argument.name for argument in schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _exported_mode(node: torch.fx.Node) -> bool | None:
    """Return the mode that an operator's module was traced in; None if it is unknown."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    _, kind = next(reversed(stack.values()))
    if isinstance(kind, type):
        kind = f"{kind.__module__}.{kind.__qualname__}"
    if kind not in _FOLLOW:
        return None
    arguments = _arguments(node)
    flags = [arguments[name] for name in ("train", "training") if name in arguments]
    if len(flags) != 1 or not isinstance(flags[0], bool):
        return None
    decides = _FOLLOW[kind]
    if decides == "running_mean":
        return flags[0] if not flags[0] or arguments.get(decides) is not None else None
    return None if decides is not None and arguments.get(decides) == 0 else flags[0]


def _told(module: torch.nn.Module) -> Iterator[tuple[str, torch.fx.Node, bool]]:
    """Yield the operators whose exported mode is known, with the paths of their modules."""
    for fqn, holder in module.named_modules():
        for part in getattr(holder, "_call_modules", (holder,)):
            graph = getattr(part, "graph", None)
            if not isinstance(graph, torch.fx.Graph):
                continue
            for node in graph.nodes:
                mode = _exported_mode(node)
                if mode is not None:
                    yield fqn, node, mode


def _check(module: torch.nn.Module, mode: bool, *, below_another: bool) -> None:
    told = list(_told(module))
    others = [(fqn, node) for fqn, node, exported in told if exported is not mode]
    if not others:
        return
    name = "train" if mode else "eval"
    fqn, node = others[0]
    where = (
        f"{node} in {fqn or 'the root module'} ({node.target}) was exported with "
        f"training={not mode}"
    )
    if len(others) == len(told) and not below_another:
        raise UnsupportedError(
            f"Calling {name}() is not supported: {where}. Export the model in the mode that you "
            "need"
        )
    warnings.warn(
        f"{name}() leaves operators of an unflattened program as they were exported: {where}, and "
        f"computes as before ({len(others)} of {len(told)} operators)",
        stacklevel=4,
    )


def _is_called_by_a_parent() -> bool:
    """Return whether `torch.nn.Module.train` of a parent, whose mode is set, is the caller."""
    caller = sys._getframe(3)  # above this function, `set_mode`, and the module's `train`
    return caller.f_code is torch.nn.Module.train.__code__


def set_mode(module: torch.nn.Module, mode: bool, apply: Callable[[bool], Any]) -> None:
    """Set a module's mode by `apply`; refuse a mode that contradicts all operators below.

    Checks all operators before it sets a mode. Warns instead of raising if the operators' modes
    differ, or if a parent that is not a module of fxpress sets the mode.
    """
    if not isinstance(mode, bool):
        raise ValueError("training mode is expected to be boolean")
    if getattr(_setting, "active", False):
        apply(mode)  # the check of the module above covered this one
        return
    _check(module, mode, below_another=_is_called_by_a_parent())
    _setting.active = True
    try:
        apply(mode)
    finally:
        _setting.active = False

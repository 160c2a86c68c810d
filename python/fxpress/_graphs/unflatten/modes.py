"""Refuse a train() or eval() call that contradicts the mode in which a module was exported.

The graph stores the mode as flags of operators such as dropout and batch norm, so another mode
would have no effect. Only operators that were traced in torch's own modules are checked, because
the flag of such an operator equals the module's `training`. A user's `forward` may call
`F.dropout(x, training=True)` in either mode.
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

# Class of a module -> the operator's argument that decides whether the mode has an effect: it has
# none if `p` or `dropout` is 0, or if `running_mean` is missing. None: it always has an effect.
_DROPOUT = dict.fromkeys(
    ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout"), "p"
)
_RECURRENT = dict.fromkeys(("RNN", "LSTM", "GRU"), "dropout")
_BATCH_NORM = dict.fromkeys(
    ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"), "running_mean"
)
_MODULES_WITH_MODE = {
    f"torch.nn.modules.{file}.{name}": argument
    for file, classes in (
        ("dropout", _DROPOUT),
        ("rnn", _RECURRENT),
        ("batchnorm", _BATCH_NORM),
        ("activation", {"RReLU": None}),
    )
    for name, argument in classes.items()
}


def _arguments(node: torch.fx.Node) -> dict[str, Any]:
    """Return the arguments of an operator call by name; {} for any other node."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or node.op != "call_function":
        return {}
    names = [argument.name for argument in schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _exported_mode(node: torch.fx.Node) -> bool | None:
    """Return `training` of the module that a node was traced in; None if the node has no mode."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return None
    _, kind = next(reversed(stack.values()))
    if isinstance(kind, type):
        kind = f"{kind.__module__}.{kind.__qualname__}"
    if kind not in _MODULES_WITH_MODE:
        return None
    arguments = _arguments(node)
    flags = [arguments[name] for name in ("train", "training") if name in arguments]
    if len(flags) != 1 or not isinstance(flags[0], bool):
        return None
    name = _MODULES_WITH_MODE[kind]
    if name == "running_mean":
        return flags[0] if not flags[0] or arguments.get(name) is not None else None
    return None if name is not None and arguments.get(name) == 0 else flags[0]


def _exported_modes(module: torch.nn.Module) -> Iterator[tuple[str, torch.fx.Node, bool]]:
    """Yield (path of the module, node, exported mode) for each node that has a mode."""
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
    """Raise UnsupportedError if all operators in `module` have mode `not mode`; warn if some do."""
    exported_modes = list(_exported_modes(module))
    others = [(fqn, node) for fqn, node, exported in exported_modes if exported is not mode]
    if not others:
        return
    name = "train" if mode else "eval"
    fqn, node = others[0]
    where = (
        f"{node} in {fqn or 'the root module'} ({node.target}) was exported with "
        f"training={not mode}"
    )
    if len(others) == len(exported_modes) and not below_another:
        raise UnsupportedError(
            f"Calling {name}() is not supported: {where}. Export the model after calling {name}()"
        )
    warnings.warn(
        f"{name}() leaves operators of an unflattened program in the mode of the export "
        f"({len(others)} of {len(exported_modes)} operators): {where}",
        stacklevel=4,
    )


def _is_called_by_a_parent() -> bool:
    """Return whether a parent's `torch.nn.Module.train` called `train` of this module."""
    caller = sys._getframe(3)  # skips this function, `set_mode`, and `train`
    return caller.f_code is torch.nn.Module.train.__code__


def set_mode(module: torch.nn.Module, mode: bool, apply: Callable[[bool], Any]) -> None:
    """Check a module's operators, then call `apply(mode)`, which sets the mode of all submodules.

    Raises UnsupportedError if all operators were exported in the mode `not mode`. Warns instead if
    only some were, or if a parent that is not a module of fxpress sets the mode.
    """
    if not isinstance(mode, bool):
        raise ValueError("training mode is expected to be boolean")
    if getattr(_setting, "active", False):
        apply(mode)  # a parent's `set_mode` runs and has checked this module
        return
    _check(module, mode, below_another=_is_called_by_a_parent())
    _setting.active = True
    try:
        apply(mode)
    finally:
        _setting.active = False

"""Find and assign attributes of modules by dotted name, as `torch.export.unflatten` does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

from fxpress._torch import fx as torch_fx
from fxpress._torch.export import AttrKind


def _call_name(base: str, n: int) -> str:
    """Return the name of the n-th call of `base`, counted from 1: base, base@1, base@2, …"""
    return base if n == 1 else f"{base}@{n - 1}"


def _is_call_name(call_name: str, base: str) -> bool:
    """Return whether `call_name` names a call of `base`: base, base@1, base@2, …"""
    rest = call_name.removeprefix(base)
    called = call_name.startswith(base)
    return called and (rest == "" or re.fullmatch(r"@\d+\n?", rest) is not None)


def _holders(root: torch.nn.Module, path: list[str]) -> list[torch.nn.Module]:
    """Return the modules at `path`, also of further calls ("a@1" for "a"); add missing modules."""
    holders = {id(root): root}
    for name in path:
        below: dict[int, torch.nn.Module] = {}
        for holder in holders.values():
            if not hasattr(holder, name):
                setattr(holder, name, torch.nn.Module())
            for key, child in holder._modules.items():
                if child is not None and _is_call_name(key, name):
                    below[id(child)] = child
        holders = below
    return list(holders.values())


def check_constant(value: object, what: str) -> None:
    """Raise AssertionError if `value` cannot be a constant of a graph; `what` describes it."""
    if isinstance(value, torch_fx.FakeScriptObject):
        raise AssertionError(f"FakeScriptObject should only exist during tracing: {what}")
    if not isinstance(value, (torch.Tensor, torch.ScriptObject)) and not torch_fx.is_opaque_value(
        value
    ):
        raise AssertionError(
            f"expected torch.Tensor, torch.ScriptObject, or opaque type for {what}, "
            f"got {type(value)}"
        )


def check_kind(value: object, kind: Any) -> None:
    """Raise AssertionError unless an attribute of the AttrKind `kind` can have `value`."""
    expected: Any = {
        AttrKind.PARAMETER: torch.nn.Parameter,
        AttrKind.BUFFER: torch.Tensor,
        AttrKind.MODULE: torch.nn.Module,
    }.get(kind)
    if expected is not None:
        if not isinstance(value, expected):
            raise AssertionError(
                f"expected {expected.__name__} for {kind.name} attr_kind, got {type(value)}"
            )
        return
    check_constant(value, "CONSTANT attr_kind")


def _assign_attr(
    from_obj: Any, to_module: torch.nn.Module, target: str, attr_kind: Any, persistent: bool = True
) -> None:
    """Assign a value to a dotted name, for all calls of its module ("a.c" also sets "a@1.c").

    Stands in for `torch.export.unflatten._assign_attr`.

    Raises:
        AssertionError: `attr_kind` does not allow the value.
        TypeError: `attr_kind` is not an `_AttrKind`.
    """
    if not isinstance(attr_kind, AttrKind):
        raise TypeError(f"attr_kind must be one of torch's _AttrKind, not {attr_kind!r}")
    *path, name = target.split(".")
    holders = _holders(to_module, path)
    check_kind(from_obj, attr_kind)
    for holder in holders:
        if attr_kind is AttrKind.PARAMETER:
            holder.register_parameter(name, from_obj)
        elif attr_kind is AttrKind.BUFFER:
            holder.register_buffer(name, from_obj, persistent=persistent)
        else:
            setattr(holder, name, from_obj)


def _get_submodule(mod: torch.nn.Module, target: str) -> Any:
    """Return the attribute at a dotted name; None if a part is missing or is not a module."""
    *path, name = target.split(".")
    for part in path:
        mod = getattr(mod, part, None)
        if not isinstance(mod, torch.nn.Module):
            return None
    return getattr(mod, name, None)


def _add_submodule(
    mod: torch.nn.Module,
    target: str,
    module_to_add: torch.nn.Module,
    create_module: Callable[[str], torch.nn.Module] | None = None,
) -> bool | None:
    """Add a module at a dotted name; `create_module(prefix)` creates missing parents.

    Return False, and add nothing, if an attribute on the path is not a module.
    """
    *path, name = target.split(".")
    for i, part in enumerate(path):
        child = getattr(mod, part, None)
        if child is None:
            prefix = ".".join(path[: i + 1])
            child = torch.nn.Module() if create_module is None else create_module(prefix)
            setattr(mod, part, child)
        if not isinstance(child, torch.nn.Module):
            return False
        mod = child
    mod.add_module(name, module_to_add)
    return None


def _is_prefix(candidate: Any, target: Any) -> bool:
    """Return whether `target` begins with `candidate` and is longer."""
    return len(candidate) < len(target) and target[: len(candidate)] == candidate


def _compute_accessor(parent_fqn: str, child_fqn: str) -> str:
    """Return the dotted name of a module relative to a module above it."""
    if parent_fqn == "":
        return child_fqn
    parent, child = parent_fqn.split("."), child_fqn.split(".")
    if child[: len(parent)] != parent:
        raise RuntimeError(
            f"Child module '{child_fqn}' is not a descendant of parent module '{parent_fqn}'."
            "This is currently unsupported."
            "Please try to make child module attach to parent module directly."
        )
    return ".".join(child[len(parent) :])

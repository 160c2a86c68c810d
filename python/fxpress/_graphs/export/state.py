"""Set the state of an exported program (parameters, buffers, constants) on its module."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.fx
from torch.export import ExportedProgram, ExportGraphSignature

from fxpress._graphs.unflatten.attributes import _assign_attr, check_kind
from fxpress._graphs.unflatten.bodies import copy_with_separate_bodies
from fxpress._torch.export import AttrKind
from fxpress._torch.fx import PATTERN


class Named(NamedTuple):
    """A parameter, buffer or constant, which the module's graph reads from an attribute."""

    name: str  # dotted, as in the signature
    value: Any
    kind: Any  # an AttrKind


def lifted(program: ExportedProgram) -> list[Named]:
    """Check and return the state that the program's graph has as inputs."""
    state = list(_lifted(program.graph_signature, program.state_dict, program.constants))
    for name, value, kind in state:
        check_kind(value, kind)
        if "." not in name:
            _check_free(name, value, kind, program.graph_module)
    return state


def _check_free(name: str, value: object, kind: Any, owner: torch.nn.Module) -> None:
    """Raise torch's error if a body in `owner` or an attribute of all modules is named `name`."""
    if kind is AttrKind.CONSTANT:
        if name in owner._modules:
            raise TypeError(f"cannot assign '{type(value)}' as child module '{name}'")
    elif hasattr(PATTERN, name) or name in owner._modules:
        raise KeyError(f"attribute '{name}' already exists")


def _lifted(
    signature: ExportGraphSignature, state_dict: dict[str, Any], constants: dict[str, Any]
) -> Iterator[Named]:
    transient = set(signature.non_persistent_buffers)
    for name in signature.buffers:
        yield Named(name, (constants if name in transient else state_dict)[name], AttrKind.BUFFER)
    for name in signature.parameters:
        yield Named(name, state_dict[name], AttrKind.PARAMETER)
    for name in (*signature.lifted_custom_objs, *signature.lifted_tensor_constants):
        yield Named(name, constants[name], AttrKind.CONSTANT)


def owner(module: torch.fx.GraphModule, state: list[Named]) -> torch.nn.Module:
    """Return `module`; if bodies have state ("body.weight"), return a copy that has this state."""
    holders = {each.name.partition(".")[0] for each in state if "." in each.name}
    if holders.isdisjoint(module._modules):
        return module
    copy = copy_with_separate_bodies(module)
    for name, value, kind in state:
        if name.partition(".")[0] in module._modules:
            _assign_attr(value, copy, name, kind)
    return copy


def keep_constants(module: torch.nn.Module, program: ExportedProgram) -> None:
    """Make constants plain attributes, add unused constants, and mark non-persistent buffers."""
    signature, constants = program.graph_signature, program.constants
    has_call_names = any("@" in name for name in (*constants, *signature.buffers))
    setter = _Setter(module, has_call_names)
    without_gradient = _Detached()
    fixed = [
        (name, without_gradient(name, module.get_buffer(name)))
        for name in signature.lifted_tensor_constants
    ]
    for name, _ in fixed:
        path, _, field = name.rpartition(".")
        delattr(module.get_submodule(path), field)
    setter.set_all(fixed, AttrKind.CONSTANT)
    for name, value in constants.items():
        if not _has_attribute(module, name):
            setter.set(name, without_gradient(name, value), AttrKind.CONSTANT)
    transient = [(name, module.get_buffer(name)) for name in signature.non_persistent_buffers]
    setter.set_all(transient, AttrKind.BUFFER)


class _Setter:
    """Sets an attribute "a.c" on the submodules of all calls of module "a": "a", "a@1", …"""

    def __init__(self, module: torch.nn.Module, has_call_names: bool) -> None:
        self._module = module
        self._has_call_names = has_call_names

    def set_all(self, values: list[tuple[str, Any]], kind: Any) -> None:
        """Set values by name; "a@1.c" (one call of "a") overrides "a.c" (all calls of "a")."""
        for name, value in sorted(values, key=lambda pair: pair[0].count("@")):
            self.set(name, value, kind)

    def set(self, name: str, value: Any, kind: Any) -> None:
        path, _, field = name.rpartition(".")
        if self._has_call_names or not _has_attribute(self._module, path):
            _assign_attr(value, self._module, name, kind, persistent=False)
            return
        check_kind(value, kind)
        holder = self._module.get_submodule(path)
        if kind is AttrKind.BUFFER:
            holder.register_buffer(field, value, persistent=False)
        else:
            setattr(holder, field, value)


def _has_attribute(module: torch.nn.Module, name: str) -> bool:
    found: Any = module
    for part in filter(None, name.split(".")):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


class _Detached:
    """Detaches constants that require gradients; one tensor with two names stays one tensor."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, name: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return value
        warnings.warn(
            f"A model attribute `{name}` requires gradient but it's not properly registered as a "
            "parameter. torch.export will detach it and treat it as a constant tensor but please "
            "register it as parameter instead.",
            stacklevel=7,
        )
        return self._known.setdefault(id(value), (value, value.detach()))[1]

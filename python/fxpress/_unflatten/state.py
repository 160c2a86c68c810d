"""The state of an exported program: copied once for each tensor, however many names it has."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fxpress import _aten, _torch_compat


class Role(IntEnum):
    """What a module holds under a name; the order is that of `fx/unflatten/write.h`."""

    PARAMETER = 0
    BUFFER = 1
    TRANSIENT_BUFFER = 2
    CONSTANT = 3


State = tuple[str, int, Any]  # dotted name, role, value


class Held:
    """What a program holds by name, what its inputs are of it, and which of it is the same data.

    Two names are of one group when they stand for one object, or for tensors that see one storage
    through one view; `dtype` counts, other than in torch's `_TensorID`.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self.inputs = [_input(spec) for spec in program.graph_signature.input_specs]
        self.state_dict = program.state_dict
        self.constants = program.constants
        values = [*self.state_dict.values(), *self.constants.values()]
        groups = _aten.same_data(values)
        self.group = dict(zip(self.state_dict, groups, strict=False))
        self.constant_group = dict(zip(self.constants, groups[len(self.state_dict) :], strict=True))


class Kind(IntEnum):
    """What an input of the graph stands for."""

    PARAMETER = 0
    BUFFER = 1
    TRANSIENT_BUFFER = 2
    CONSTANT = 3
    OTHER = 4


_KINDS = {
    InputKind.PARAMETER: Kind.PARAMETER,
    InputKind.BUFFER: Kind.BUFFER,
    InputKind.CONSTANT_TENSOR: Kind.CONSTANT,
    InputKind.CUSTOM_OBJ: Kind.CONSTANT,
}


def _input(spec: Any) -> tuple[Kind, str, str]:
    """Kind, name of the state, and name of the placeholder of an input."""
    kind = _KINDS.get(spec.kind, Kind.OTHER)
    if kind is Kind.OTHER:
        return kind, "", ""
    if kind is Kind.BUFFER and not spec.persistent:
        kind = Kind.TRANSIENT_BUFFER
    name = getattr(spec.arg, "name", None)
    if name is None:
        raise AssertionError(
            f"expected s.arg to have 'name' attribute for kind {spec.kind}, got {type(spec.arg)}"
        )
    if not isinstance(spec.target, str):
        raise AssertionError(
            f"expected s.target to be str for kind {spec.kind}, got {type(spec.target)}"
        )
    return kind, spec.target, name


class _Copies:
    """One copy for each group, made all at once by `make`."""

    def __init__(self, share_state: bool, device: torch.device | None) -> None:
        self._share_state = share_state
        self._device = device
        self._wanted: dict[tuple[int, bool], Any] = {}

    def want(self, group: int, value: Any, *, parameter: bool) -> tuple[int, bool]:
        """The key of the copy of `value`."""
        key = (group, parameter)
        self._wanted.setdefault(key, value)
        return key

    def make(self) -> dict[tuple[int, bool], Any]:
        """Every copy that was wanted, by its key."""
        wanted = self._wanted
        if self._share_state and self._device is None:
            return {key: self._kept(value, key[1]) for key, value in wanted.items()}
        made: list[Any] = [None] * len(wanted)
        if self._device is None:
            made = _aten.clone_tensors(list(wanted.values()), [key[1] for key in wanted])
        return {
            key: self._copy(value, key[1]) if copied is None else copied
            for (key, value), copied in zip(wanted.items(), made, strict=True)
        }

    def _copy(self, value: Any, parameter: bool) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if self._device is None:
            copied = value.clone()
        else:
            copied = value.to(self._device, copy=not self._share_state)
        return self._kept(copied, parameter, value.requires_grad)

    @staticmethod
    def _kept(value: Any, parameter: bool, requires_grad: bool | None = None) -> Any:
        if not parameter or isinstance(value, torch.nn.Parameter):
            return value
        wants = value.requires_grad if requires_grad is None else requires_grad
        return torch.nn.Parameter(value, requires_grad=wants)


def _check_constant(name: str, value: object) -> None:
    if isinstance(value, _torch_compat.FakeScriptObject):
        raise AssertionError(f"FakeScriptObject should only exist during tracing: {name!r}")
    if not isinstance(
        value, (torch.Tensor, torch.ScriptObject)
    ) and not _torch_compat.is_opaque_value(value):
        raise AssertionError(
            f"expected torch.Tensor, torch.ScriptObject, or opaque type for constant {name!r}, "
            f"got {type(value)}"
        )


def _lookup(values: Any, name: str, what: str) -> Any:
    try:
        return values[name]
    except KeyError:
        raise KeyError(
            f"{name!r}: the program's signature names this {what}, its state does not have it"
        ) from None


def collect(held: Held, *, share_state: bool, device: torch.device | None) -> list[State]:
    """What the modules will hold, in the order in which torch assigns it.

    Parameters and buffers that the graph does not use are restored as well: they may be other names
    of tensors that it uses. What shares nothing with those is not copied.

    Raises:
        KeyError: the signature names state that the program does not have.
        AssertionError: a constant is neither a tensor nor an object that a graph can hold.
    """
    state_dict, constants = held.state_dict, held.constants
    copies = _Copies(share_state, device)
    plan: list[tuple[str, Role, Any]] = []  # name, role, key of a copy or (None, value)
    roles: dict[str, Role] = {}
    parameters: set[int] = set()
    buffers: set[int] = set()

    def copied(name: str, role: Role, group: int, value: Any) -> None:
        roles[name] = role
        plan.append((name, role, copies.want(group, value, parameter=role is Role.PARAMETER)))

    def shared(name: str, role: Role, value: Any) -> None:
        roles[name] = role
        plan.append((name, role, (None, value)))

    for kind, name, _ in held.inputs:
        if kind is Kind.PARAMETER:
            value = _lookup(state_dict, name, "parameter")
            parameters.add(held.group[name])
            copied(name, Role.PARAMETER, held.group[name], value)
    for kind, name, _ in held.inputs:
        if kind is Kind.BUFFER:
            value = _lookup(state_dict, name, "buffer")
            buffers.add(held.group[name])
            copied(name, Role.BUFFER, held.group[name], value)
        elif kind is Kind.TRANSIENT_BUFFER:
            value = _lookup(constants, name, "buffer")
            buffers.add(held.constant_group[name])
            copied(name, Role.TRANSIENT_BUFFER, held.constant_group[name], value)
    for name, value in state_dict.items():
        if name in roles:
            continue
        group = held.group[name]
        is_buffer = group in buffers or not isinstance(value, torch.nn.Parameter)
        role = Role.BUFFER if is_buffer else Role.PARAMETER
        if device is not None or group in (buffers if is_buffer else parameters):
            copied(name, role, group, value)
        else:
            shared(name, role, value)
    for name, value in constants.items():
        if name not in roles:
            _check_constant(name, value)
            copied(name, Role.CONSTANT, held.constant_group[name], value)
    made = copies.make()
    return [(name, role, key[1] if key[0] is None else made[key]) for name, role, key in plan]


def targets(held: Held) -> dict[str, list[str]]:
    """For each placeholder of the graph that stands for state, every name of that state.

    Raises:
        KeyError: the signature names state that the program does not have.
        AssertionError: a constant that the graph cannot have got from anywhere.
    """
    placeholders: dict[int, list[str]] = {}
    names: dict[int, list[str]] = {}
    known: set[str] = set()
    for kind, name, placeholder in held.inputs:
        if kind is Kind.OTHER:
            continue
        is_state = kind is Kind.PARAMETER or kind is Kind.BUFFER
        group = _lookup(held.group if is_state else held.constant_group, name, "state")
        if group in names:
            names[group].append(name)
            placeholders[group].append(placeholder)
        else:
            names[group] = [name]
            placeholders[group] = [placeholder]
        known.add(name)
    for name, group in held.constant_group.items():
        if name in known:
            continue
        if group not in placeholders:
            raise AssertionError(f"constant {name!r} id not found in consts_map")
        names[group].append(name)
    for name, group in held.group.items():
        # What shares nothing with an input of the graph is not used by it.
        if name not in known and group in placeholders:
            names[group].append(name)
    return {
        placeholder: names[group]
        for group, members in placeholders.items()
        for placeholder in members
    }

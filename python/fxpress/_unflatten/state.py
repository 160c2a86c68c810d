"""The state of an exported program: copied once for each tensor, however many names it has."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ExportGraphSignature
from torch.export.graph_signature import InputKind

from fxpress import _torch_compat


class Role(IntEnum):
    """What a module holds under a name; the order is that of `fx/unflatten/write.h`."""

    PARAMETER = 0
    BUFFER = 1
    TRANSIENT_BUFFER = 2
    CONSTANT = 3


State = tuple[str, int, Any]  # dotted name, role, value


def identity(value: object) -> Hashable:
    """Equal for what is the same data: one storage seen through one view, or one object."""
    if not isinstance(value, torch.Tensor):
        return id(value)
    try:
        storage = value.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return id(value)  # sparse tensors and wrappers have none
    return storage._cdata, value.dtype, value.size(), value.stride(), value.storage_offset()


class _Copies:
    """One copy for each identity."""

    def __init__(self, copy: Callable[[torch.Tensor], torch.Tensor] | None) -> None:
        self._copy = copy
        self._known: dict[Hashable, Any] = {}

    def __contains__(self, value: object) -> bool:
        return identity(value) in self._known

    def parameter(self, value: torch.Tensor) -> torch.Tensor:
        key = identity(value)
        if key not in self._known:
            copied = value
            if self._copy is not None or not isinstance(value, torch.nn.Parameter):
                data = value if self._copy is None else self._copy(value)
                copied = torch.nn.Parameter(data, requires_grad=value.requires_grad)
            self._known[key] = copied
        return self._known[key]

    def __getitem__(self, value: Any) -> Any:
        key = identity(value)
        if key not in self._known:
            copies = isinstance(value, torch.Tensor) and self._copy is not None
            self._known[key] = self._copy(value) if copies and self._copy else value
        return self._known[key]


def _copier(
    share_state: bool, device: torch.device | None
) -> Callable[[torch.Tensor], torch.Tensor] | None:
    if share_state and device is None:
        return None
    if device is None:
        return lambda value: value.clone()
    if share_state:
        return lambda value: value.to(device)
    return lambda value: value.to(device, copy=True)


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


def collect(
    program: ExportedProgram,
    signature: ExportGraphSignature,
    *,
    share_state: bool,
    device: torch.device | None,
) -> list[State]:
    """What the modules will hold, in the order in which torch assigns it.

    Parameters and buffers that the graph does not use are restored as well: they may be other names
    of tensors that it uses.

    Raises:
        KeyError: the signature names state that the program does not have.
        AssertionError: a constant is neither a tensor nor an object that a graph can hold.
    """
    state_dict, constants = program.state_dict, program.constants
    copy = _copier(share_state, device)
    parameters, buffers, others = _Copies(copy), _Copies(copy), _Copies(copy)
    result: list[State] = []
    assigned: set[str] = set()

    def assign(name: str, role: Role, value: Any) -> None:
        assigned.add(name)
        result.append((name, role, value))

    for name in signature.parameters:
        value = parameters.parameter(_lookup(state_dict, name, "parameter"))
        assign(name, Role.PARAMETER, value)
    transient = set(signature.non_persistent_buffers)
    for name in signature.buffers:
        source = constants if name in transient else state_dict
        role = Role.TRANSIENT_BUFFER if name in transient else Role.BUFFER
        assign(name, role, buffers[_lookup(source, name, "buffer")])
    for name, value in state_dict.items():
        if name in assigned:
            continue
        # What nothing in the graph shares is not copied.
        if value in buffers or not isinstance(value, torch.nn.Parameter):
            held = buffers[value] if value in buffers or device is not None else value
            assign(name, Role.BUFFER, held)
        else:
            known = value in parameters or device is not None
            assign(name, Role.PARAMETER, parameters.parameter(value) if known else value)
    for name, value in constants.items():
        if name in assigned:
            continue
        _check_constant(name, value)
        # A constant may be a view of what a buffer holds, or the buffer under another name.
        assign(name, Role.CONSTANT, buffers[value] if value in buffers else others[value])
    return result


def targets(program: ExportedProgram, signature: ExportGraphSignature) -> dict[str, list[str]]:
    """For each placeholder of the graph that stands for state, every name of that state.

    Raises:
        AssertionError: a constant that the graph cannot have got from anywhere.
    """
    placeholders: dict[Hashable, list[str]] = {}
    names: dict[Hashable, list[str]] = {}
    known: set[str] = set()

    def add(value: object, name: str, placeholder: str | None = None) -> None:
        key = identity(value)
        names.setdefault(key, []).append(name)
        if placeholder is not None:
            placeholders.setdefault(key, []).append(placeholder)
        known.add(name)

    for spec in signature.input_specs:
        if spec.kind in (InputKind.USER_INPUT, InputKind.TOKEN):
            continue
        is_transient = spec.kind == InputKind.BUFFER and not spec.persistent
        held_by_state_dict = spec.kind in (InputKind.PARAMETER, InputKind.BUFFER)
        source = program.state_dict if held_by_state_dict and not is_transient else None
        if not hasattr(spec.arg, "name"):
            raise AssertionError(
                f"expected s.arg to have 'name' attribute for kind {spec.kind}, "
                f"got {type(spec.arg)}"
            )
        if not isinstance(spec.target, str):
            raise AssertionError(
                f"expected s.target to be str for kind {spec.kind}, got {type(spec.target)}"
            )
        values = program.constants if source is None else source
        add(_lookup(values, spec.target, "state"), spec.target, spec.arg.name)
    for name, value in program.constants.items():
        if name in known:
            continue
        if identity(value) not in placeholders:
            raise AssertionError(f"constant {name!r} id not found in consts_map")
        add(value, name)
    for name, value in program.state_dict.items():
        # What shares nothing with an input of the graph is not used by it.
        if name not in known and identity(value) in placeholders:
            add(value, name)
    return {placeholder: names[key] for key, group in placeholders.items() for placeholder in group}

"""Copy the state of an exported program, each tensor once, however many names it has."""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram

from fxpress import _native
from fxpress._base.observing.progress import Progress
from fxpress._files.tensors.batches import copy_in_parts
from fxpress._graphs.unflatten.attributes import check_constant
from fxpress._torch import aten


def collect(
    program: ExportedProgram,
    *,
    share_state: bool,
    device: torch.device | None,
    progress: Progress = False,
) -> _native.ProgramState:
    """Return the state that the modules will hold.

    Unlike in torch's `_TensorID`, tensors of different dtypes are different values.
    """
    state_dict, constants = program.state_dict, program.constants
    values = [*state_dict.values(), *constants.values()]
    state = _native.ProgramState(
        names=[*state_dict, *constants],
        values=values,
        constants_begin=len(state_dict),
        groups=aten.same_data(values),
        specs=program.graph_signature.input_specs,
        check_constant=lambda name, value: check_constant(value, f"constant {name!r}"),
        copies_unused=device is not None,
    )

    def copies(values: list[Any], are_parameters: list[bool]) -> list[Any]:
        return _copies(values, are_parameters, share_state, device)

    state.fill(copy_in_parts(copies, state.wanted(), progress, "copying state"))
    return state


def _copies(
    values: list[Any], are_parameters: list[bool], share_state: bool, device: torch.device | None
) -> list[Any]:
    if device is None and not share_state:
        copies = aten.clone_separately(values, are_parameters)
        return [
            _copy(*original) if copied is None else copied
            for copied, *original in zip(copies, values, are_parameters, strict=True)
        ]
    copies = values
    if device is not None:
        copies = [
            value.to(device, copy=not share_state) if isinstance(value, torch.Tensor) else value
            for value in values
        ]
    return list(map(_as_parameter, copies, values, are_parameters))


def _copy(value: Any, is_parameter: bool) -> Any:
    copied = value.clone() if isinstance(value, torch.Tensor) else value
    return _as_parameter(copied, value, is_parameter)


def _as_parameter(copied: Any, value: Any, wanted: bool) -> Any:
    if not wanted or isinstance(copied, torch.nn.Parameter):
        return copied
    return torch.nn.Parameter(copied, requires_grad=value.requires_grad)

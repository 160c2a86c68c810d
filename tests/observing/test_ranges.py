"""Ranges in torch's profiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import ExportedProgram
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

import fxpress
from fxpress._torch import watching
from fxpress.unflatten import unflatten


def test_operations_and_phases_are_ranges(program: ExportedProgram) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        unflatten(program)
        fxpress.graph_hash(program)
    ranges = {
        event.name: event.cpu_parent and event.cpu_parent.name
        for event in profiled.events()
        if event.name.startswith("fxpress::")
    }
    assert ranges == {
        "fxpress::unflatten": None,
        "fxpress::unflatten.state": "fxpress::unflatten",
        "fxpress::unflatten.graph": "fxpress::unflatten",
        "fxpress::graph_hash": None,
        "fxpress::graph_hash.graph": "fxpress::graph_hash",
        "fxpress::graph_hash.values": "fxpress::graph_hash",
    }
    assert any(event.is_user_annotation for event in profiled.events())


class Seen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_modes_see_no_ranges(program: ExportedProgram) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiled, Seen() as seen:
        unflatten(program)
    assert seen.names
    assert not any("record_function" in name for name in seen.names)
    assert not any(event.name.startswith("fxpress::") for event in profiled.events())


def test_ranges_end_when_calls_raise(program: ExportedProgram) -> None:
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        with pytest.raises(TypeError):
            fxpress.graph_hash(None)  # type: ignore[arg-type]
        torch.ones(1)
    (ones,) = (event for event in profiled.events() if event.name == "aten::ones")
    assert ones.cpu_parent is None


def test_no_range_without_a_profiler(
    program: ExportedProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.profiler, "record_function", None)
    with fxpress.profile() as profiled:
        unflatten(program)
    assert len(profiled.events) == 3
    assert watching._here.event is None

"""An error names a missing part of torch in one sentence; other import errors are unchanged."""

from __future__ import annotations

import pytest
import torch
import torch.fx.passes.split_module

from fxpress import UnsupportedError
from fxpress._torch import probes


@pytest.mark.parametrize(
    "source", ["from torch.fx import nowhere", "import torch.nowhere", "torch.fx.Graph.nowhere"]
)
def test_names_that_torch_does_not_have(source: str) -> None:
    with (
        pytest.raises(UnsupportedError, match=r"fxpress\.state does not work with torch .*nowhere"),
        probes.component("state"),
    ):
        exec(source, {"torch": torch})


def test_errors_that_are_not_due_to_torch() -> None:
    with pytest.raises(ZeroDivisionError), probes.component("state"):
        1 / 0


def test_other_errors_with_a_release_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "EXPECTED", {})
    with pytest.raises(UnsupportedError, match="division by zero"), probes.component("state"):
        1 / 0


def test_functions_with_other_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    call = "torch.fx.passes.split_module:split_module(_, _, _, nothing)"
    monkeypatch.setitem(probes._CALLS, "state", call)
    probes.check.cache_clear()
    try:
        with pytest.raises(UnsupportedError, match=r"split_module: .*'nothing'"):
            probes.check("state")
    finally:
        probes.check.cache_clear()

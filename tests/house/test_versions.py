"""The installed torch has the features that the table lists for its minor release."""

from __future__ import annotations

from functools import cached_property
from types import ModuleType

import pytest
import torch

import fxpress
from fxpress._torch.versions import EXPECTED, Features, is_of_torch

PROBES = frozenset(
    name for name, value in vars(Features).items() if isinstance(value, cached_property)
)
MINOR = ".".join(torch.__version__.split(".")[:2])


def test_the_installed_torch_is_as_expected() -> None:
    assert {name for name in PROBES if getattr(Features(), name)} == EXPECTED[MINOR]


def test_probes_are_of_torch_while_fxpress_is_installed() -> None:
    with fxpress.installed():
        assert {name for name in PROBES if getattr(Features(), name)} == EXPECTED[MINOR]


@pytest.mark.parametrize("minor", EXPECTED)
def test_the_table_names_probes(minor: str) -> None:
    assert EXPECTED[minor] <= PROBES


def fails_for_torch(source: str) -> bool:
    with pytest.raises((ImportError, AttributeError)) as raised:
        exec(source, {"torch": torch})
    return is_of_torch(raised.value)


def test_names_that_torch_does_not_have_are_told_from_other_failures() -> None:
    assert fails_for_torch("from torch.fx import nowhere")
    assert fails_for_torch("import torch.nowhere")
    assert fails_for_torch("torch.fx.nowhere")
    assert fails_for_torch("torch.fx.Graph.nowhere")
    assert not fails_for_torch("import nowhere")
    assert not is_of_torch(AttributeError("x", name="x", obj=ModuleType("ours")))

"""A made-up component for install(): a module in torch's role and one in fxpress's."""

from __future__ import annotations

import sys
import types
from typing import NamedTuple

import pytest

from fxpress import _install
from fxpress._install.installation import Installation
from fxpress._install.table import Entry

TORCH, OURS = "faketorch_cut", "fxpress._fake_component"

TORCH_SOURCE = '''
def cut(graph, at=0):
    """torch's cut"""
    return "torch", graph, at

def helper(): return "torch's helper"

class Part:
    def __init__(self, name): self.name = name
'''
OUR_SOURCE = '''
from fxpress._base.errors import UnsupportedError

def cut(graph, at=0):
    """our cut"""
    if graph == "odd":
        raise UnsupportedError("node odd: no such luck; use even ones")
    if graph == "bad":
        raise ValueError("bad graph")
    return "ours", graph, at

def helper(): return "our helper"

class Part:
    """our part"""
    def __init__(self, name, size=1): self.name, self.size = name, size
'''


class Component(NamedTuple):
    torch: types.ModuleType
    ours: types.ModuleType
    cut: object  # torch's originals, in a tuple, where no scan finds them
    part: type


@pytest.fixture
def module(monkeypatch):
    """Make a module in sys.modules by running source in it."""

    def make(name: str, source: str = "") -> types.ModuleType:
        made = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        exec(source, made.__dict__)
        return made

    return make


def table(*names: str, ours: str = OURS) -> list[Entry]:
    return [Entry(TORCH, name, (ours, name)) for name in names]


@pytest.fixture
def use(monkeypatch):
    """Return a function that replaces the process's installation by a new one for a table."""

    def put(components: list[Entry]) -> Installation:
        fresh = Installation(components)
        monkeypatch.setattr(_install, "_installation", fresh)
        return fresh

    monkeypatch.delenv("FXPRESS_DISABLE", raising=False)
    yield put
    left = _install._installation
    assert not left.leases, "the test left fxpress installed"


@pytest.fixture
def component(module, use) -> Component:
    torch, ours = module(TORCH, TORCH_SOURCE), module(OURS, OUR_SOURCE)
    use(table("cut", "helper", "Part"))
    return Component(torch, ours, torch.cut, torch.Part)


def same_names(before: dict, after: dict) -> bool:
    return before.keys() == after.keys() and all(before[k] is after[k] for k in before)

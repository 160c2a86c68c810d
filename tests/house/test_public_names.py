"""A public name is one object, whichever module has it; modules are imported when they are used."""

from __future__ import annotations

import importlib
import pkgutil
from collections import defaultdict

import fxpress

MODULES = [each.name for each in pkgutil.iter_modules(fxpress.__path__) if each.name[0] != "_"]
# Modules of torch with a function of the same name, and a class of torch that ours derives from.
OF_TORCH = {"SerializeError", "serialize", "split_module", "unflatten"}


def test_a_name_is_one_object() -> None:
    objects: dict[str, set[int]] = defaultdict(set)
    modules = [importlib.import_module(f"fxpress.{name}") for name in (*MODULES, "view.data")]
    for module in (fxpress, *modules):
        for name in module.__all__:
            objects[name].add(id(getattr(module, name)))
    assert {name for name, found in objects.items() if len(found) > 1} == OF_TORCH


def test_every_public_module_is_an_attribute() -> None:
    assert len(MODULES) > 10
    assert set(MODULES) <= set(fxpress.__all__)
    for name in MODULES:
        assert getattr(fxpress, name) is importlib.import_module(f"fxpress.{name}")

"""A public name is one object, whichever module has it; modules are imported when they are used."""

from __future__ import annotations

import importlib
from collections import defaultdict

import fxpress
from tests.house.test_docstrings import MODULES

# Names of torch: modules with a function of the same name, and its own class in `serialize`.
OF_TORCH = {"SerializeError", "serialize", "split_module", "unflatten"}


def test_a_name_is_one_object() -> None:
    objects: dict[str, set[int]] = defaultdict(set)
    for name in MODULES:
        module = fxpress if name == "fxpress" else importlib.import_module(f"fxpress.{name}")
        for each in module.__all__:
            objects[each].add(id(getattr(module, each)))
    assert {name for name, found in objects.items() if len(found) > 1} == OF_TORCH


def test_every_public_module_is_an_attribute() -> None:
    names = {name for name in MODULES if name != "fxpress" and "." not in name}
    assert names <= set(fxpress.__all__)
    for name in names:
        assert getattr(fxpress, name) is importlib.import_module(f"fxpress.{name}")

"""A public name is one object, whichever module has it; modules are imported when they are used."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import fxpress

MODULES = [each.name for each in pkgutil.iter_modules(fxpress.__path__) if each.name[0] != "_"]
# Modules of torch with a function of the same name, and a class of torch that ours derives from.
OF_TORCH = {"SerializeError", "serialize", "split_module", "unflatten"}

_NAME = re.compile(r"\bfxpress\.([a-z]\w*(?:\.[A-Za-z]\w*)*)")
# A logger and the keys of marks, which are not attributes.
OTHERS = {"operations", "program_specs", "signed_forward", "guards", "guard_function"}


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


def test_dir_has_all_public_names_and_no_others() -> None:
    assert set(dir(fxpress)) == {*fxpress.__all__, "__version__"}


def test_names_in_messages_work_after_a_plain_import() -> None:
    """Texts of the sources, such as messages, name public objects by paths that exist."""
    names = set()
    for path in Path(fxpress.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                names |= {found[1] for found in _NAME.finditer(node.value)}
    script = "import fxpress, operator, sys\nfor n in sys.argv[1:]: operator.attrgetter(n)(fxpress)"
    assert len(names) > 20
    command = [sys.executable, "-c", script, *sorted(names - OTHERS)]
    subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)

"""Functions of the extension modules have named arguments, a sentence, and a stub that agrees."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fxpress
from fxpress import _native
from fxpress._files.serde import native_table
from fxpress._torch import aten

CSRC = Path(__file__).parents[2] / "csrc"
native_table.fill()
MODULES: tuple[ModuleType, ...] = (_native, aten.extension)
SPECIAL = ("__init__", "__call__", "__enter__", "__exit__")
PYBIND11S_OWN = {"_pybind11_conduit_v1_", "__reduce_ex__"}


def functions(owner: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        if name in PYBIND11S_OWN or (name.startswith("_") and name not in SPECIAL):
            continue
        if inspect.isclass(value) and not issubclass(value, Exception):
            yield from functions(value, f"{path}.{name}")
        elif inspect.isbuiltin(value) or type(value).__name__ == "instancemethod":
            yield f"{path}.{name}", value  # the latter are the methods of pybind11's classes


ALL = {path: value for module in MODULES for path, value in functions(module, module.__name__)}


def parameters(arguments: ast.arguments) -> dict[str, Any]:
    """Return names and kinds of parameters, without `self` and types."""
    only = [argument.arg for argument in arguments.posonlyargs]
    both = [argument.arg for argument in arguments.args]
    if (only or both)[:1] == ["self"]:
        (only or both).pop(0)
    return {
        "positional": only,
        "positional or keyword": both,
        "keyword": [argument.arg for argument in arguments.kwonlyargs],
        "optional": len(arguments.defaults),
        "further": arguments.vararg is not None,
    }


def declared(function: Any) -> dict[str, Any]:
    """The parameters that a binding declares, in the first line of its docstring."""
    first = (function.__doc__ or "").partition("\n")[0]
    if not first.startswith(f"{function.__name__}("):  # CPython's own way
        text = str(inspect.signature(function))
        first = f"{function.__name__}{text}"
    # Types that no binding has, such as fxpress::schema::Document, are Python but for the colons.
    tree = ast.parse(f"def {first.replace('::', '.')}: ...").body[0]
    assert isinstance(tree, ast.FunctionDef)
    return parameters(tree.args)


def stubs(module: ModuleType) -> Iterator[tuple[str, ast.FunctionDef]]:
    name = "_native.pyi" if module is _native else "_torch/aten.pyi"
    stub = Path(fxpress.__file__).parent / name
    for item in ast.parse(stub.read_text()).body:
        if isinstance(item, ast.FunctionDef):
            yield f"{module.__name__}.{item.name}", item
        elif isinstance(item, ast.ClassDef):
            for method in item.body:
                if isinstance(method, ast.FunctionDef) and not method.decorator_list:
                    yield f"{module.__name__}.{item.name}.{method.name}", method


STUBS = {path: function for module in MODULES for path, function in stubs(module)}
# Types of our own, whose methods are slots.
SLOTS = ("fxpress._native.ComputedAttribute.", "fxpress._native.DeferredAttribute.")


@pytest.mark.parametrize("path", sorted(ALL))
def test_arguments_have_names(path: str) -> None:
    assert "arg0" not in (inspect.getdoc(ALL[path]) or "")


@pytest.mark.parametrize("path", sorted(ALL))
def test_stub(path: str) -> None:
    if path.endswith(".__init__") and path not in STUBS:  # object's own, without arguments
        assert declared(ALL[path]) == declared(_native.GcPause.__init__)
    else:
        assert declared(ALL[path]) == parameters(STUBS[path].args)


def test_stubs_name_nothing_else() -> None:
    assert [path for path in STUBS if path not in ALL and not path.startswith(SLOTS)] == []


def test_lists_of_bindings_hold_no_classes() -> None:
    for folder in ("bind", "aten"):
        for path in (CSRC / folder).iterdir():
            lines = path.read_text().splitlines()
            found = [line for line in lines if line.startswith(("class ", "struct ", "union "))]
            # A tag for pybind11 is not a class of fxpress.
            assert path.name == "components.h" or not found, path

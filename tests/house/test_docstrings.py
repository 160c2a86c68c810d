"""Every public docstring names torch's function and the arguments, and has an example."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import fxpress

MODULES = (
    *(
        "fxpress",
        "archive",
        "checkpoint",
        "decompose",
        "export",
        "functional_export",
        "nn_module",
        "partition",
    ),
    *("pipeline", "serialize", "split_module", "state", "unflatten", "view", "view.data"),
)
OF_TORCH = re.compile(
    r"[Ss]tands in\s+for\s+(the method\s+)?`+torch|in place of\s+`+torch|subclass of\s+`+torch"
    r"|[Tt]orch\s+has\s+no\s+(such|counterpart)|torch\s+does\s+not\s+have"
)
ONLY_A_REFERENCE = re.compile(r"^\s+[\w, .]+: (see|as for|as) `[\w.]+`\.$", re.MULTILINE)


def public() -> Iterator[tuple[str, Any]]:
    """Yield the public functions and classes that fxpress defines, each once."""
    seen: set[int] = set()
    for name in MODULES:
        module = fxpress if name == "fxpress" else importlib.import_module(f"fxpress.{name}")
        for each in module.__all__:
            value = getattr(module, each)
            is_ours = getattr(value, "__module__", "").partition(".")[0] == "fxpress"
            if callable(value) and is_ours and id(value) not in seen:
                seen.add(id(value))
                yield f"{name}.{each}", value


NAMES = [pytest.param(value, id=name) for name, value in public()]


def takes_arguments(value: Any) -> bool:
    """Return whether a function, or a class that callers make, has parameters with names."""
    if isinstance(value, type) and (
        issubclass(value, BaseException) or "Variable" in value.__name__  # Dynamo makes these
    ):
        return False
    parameters = inspect.signature(value).parameters.values()
    return any(p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters)


@pytest.mark.parametrize("value", NAMES)
def test_docstring(value: Any) -> None:
    text = inspect.getdoc(value) or ""
    assert OF_TORCH.search(text), "it does not say what of torch it stands in for"
    assert not ONLY_A_REFERENCE.search(text)
    if takes_arguments(value):
        assert re.search(r"^(Args|Attributes):$", text, re.MULTILINE), (
            "it does not say its arguments"
        )


@pytest.mark.parametrize("value", NAMES)
def test_example(value: Any) -> None:
    """The site runs them; the page of `fxpress.nn_module` has one for the classes of Dynamo."""
    if isinstance(value, type) and "Variable" in value.__name__:
        return
    assert ">>> " in (inspect.getdoc(value) or ""), "it has no example"


def test_all_names_are_found() -> None:
    assert len(NAMES) > 80

"""Look for operators that torch does not have."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Iterable

from fxpress._files.format.torch_facts import operators, torch_version
from fxpress._tools.inspect.findings import Found

_LIBRARIES = "torch.ops."
_HIGHER_ORDER = "higher_order"


def check_operators(targets: Iterable[str]) -> Found:
    """Yield those of the operators that are not torch's own.

    An unknown operator in a namespace of torch is a fault where the installed torch is of the
    release whose operators are known; otherwise, and in the namespace of a library, it is a note.
    """
    known = operators()
    for target in targets:
        if target in known:
            continue
        library = target.removeprefix(_LIBRARIES).partition(".")[0]
        is_torchs = not target.startswith((_LIBRARIES, "#")) or library in _namespaces()
        if is_torchs and is_installed():
            yield f"torch {torch_version()} has no {target!r}", False
        elif is_torchs:
            yield f"torch {torch_version()} has no {target!r}; another release may", True
        else:
            yield f"{target!r} is of a library, which has to be imported before a load", True


@functools.cache
def _namespaces() -> frozenset[str]:
    """Return the namespaces that only torch itself adds to."""
    found = {name.split(".")[2] for name in operators() if name.startswith(_LIBRARIES)}
    return frozenset(found - {_HIGHER_ORDER})


@functools.cache
def is_installed() -> bool:
    """Return whether the installed torch is of the release that is known."""
    try:
        installed = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return False
    return installed.split(".")[:2] == torch_version().split(".")[:2]

"""The floor: the seconds for only creating the objects of a result, without computing them.

The first use compiles `floor.cpp` with fxpress's sources for graphs, into the folder `build`. Like
the build of fxpress itself, this needs a C++20 compiler and Python's headers.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.util
import os
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch.fx import GraphModule

from fxpress import _native
from fxpress._torch import native_tables

_ROOT = Path(__file__).parents[1]
_SOURCE = Path(__file__).with_suffix(".cpp")


def creation_times(modules: Sequence[GraphModule], repeats: int) -> list[float]:
    """Return, for each repeat, the seconds for creating copies of GraphModules."""
    times: list[float] = _extension().creation_times(modules, repeats)
    return times


def plain_creation_times(modules: Sequence[torch.nn.Module], repeats: int) -> list[float]:
    """Return `creation_times` for unflattened modules: a Graph and an nn.Module each.

    Modules without a graph are skipped.
    """
    times: list[float] = _extension().plain_creation_times(modules, repeats)
    return times


@functools.cache
def _extension() -> ModuleType:
    """Return the compiled `floor.cpp`, which works with the tables of `_native`."""
    path = _ROOT / "build" / f"_floor{sysconfig.get_config_var('EXT_SUFFIX')}"
    path.parent.mkdir(exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:  # several processes may compile at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        _compile(path)
    spec = importlib.util.spec_from_file_location("_floor", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    native_tables.fx()
    module.adopt_tables(_native.tables)
    return module


def _compile(path: Path) -> None:
    """Compile the extension, unless it is newer than all of its sources."""
    folders = [_ROOT / "csrc" / name for name in ("core", "fx", "py")]
    files = [file for folder in folders for file in sorted(folder.iterdir())]
    sources = [file for file in files if file.suffix == ".cpp"] + [_SOURCE]
    newest = max(file.stat().st_mtime for file in [*files, _SOURCE])
    if path.exists() and path.stat().st_mtime > newest:
        return
    of_torch = Path(torch.__file__).parent / "include"  # has pybind11
    include = [_ROOT / "csrc", sysconfig.get_path("include"), of_torch]
    command = [
        *(os.environ.get("CXX", "c++"), "-std=c++20", "-O3", "-fPIC", "-shared"),
        *("-fvisibility=hidden", "-Wl,--wrap=__gxx_personality_v0"),  # csrc/py/exiting_thread.cpp
        *("-x", "c++", "-", "-o", str(path)),
        *(f"-I{folder}" for folder in include),
    ]
    text = "".join(f'#include "{source}"\n' for source in sources)
    subprocess.run(command, input=text, text=True, check=True)

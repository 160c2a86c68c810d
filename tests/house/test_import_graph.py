"""Who imports whom among the Python modules: parts import parts below them only, without cycles.

What a function imports counts too.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "python"
# The parts from the bottom to the top, and the order of the packages in a part, which may import
# those of earlier rows. The public modules are above all parts.
PARTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "_native": (),
    "_base": (),
    "_torch": (),
    "_install": (),
    "_files": (("format",), ("errors",), ("remote", "tensors", "serde"), ("archive",)),
    "_graphs": (
        *(("engine",), ("unflatten",), ("export",), ("trace",), ("decompose",)),
        *(("tracking",), ("capture",), ("split",), ("partition",)),
    ),
    "_distributed": (("errors",), ("stages",), ("checkpoint",), ("pipeline",)),
    "_tools": (("doctor", "profile"), ("inspect",), ("view",), ("cli",)),
}
LEVEL = {name: i for i, name in enumerate(PARTS)}
PUBLIC = len(PARTS)


def modules() -> dict[str, Path]:
    found = {}
    for path in (ROOT / "fxpress").rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported(path: Path, package: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] + "." if node.level else ""
            module = (base + (node.module or "")).rstrip(".")
            names = [f"{module}.{each.name}" for each in node.names]
        else:
            continue
        for name in names:
            if name.partition(".")[0] == "fxpress":
                yield name if name in MODULES else name.rpartition(".")[0]


@functools.cache
def graph() -> dict[str, set[str]]:
    edges = {}
    for name, path in MODULES.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        edges[name] = {other for other in imported(path, package) if other in MODULES} - {name}
    return edges


def level(name: str) -> int:
    """The floor of a module; public modules are on the highest one."""
    return LEVEL.get(name.split(".")[1], PUBLIC)


def row(name: str) -> tuple[str, int]:
    """The part of a module, and the row of its package there; -1 for the part itself."""
    _, part, *inner = name.split(".")
    rows = [i for i, names in enumerate(PARTS[part]) if inner and inner[0] in names]
    assert rows or not inner or not PARTS[part], f"{name} has no row in PARTS"
    return part, rows[0] if rows else -1


def edges() -> Iterator[tuple[str, str]]:
    """Pairs of a module and a module that it imports, but for the package's lazy lookups."""
    for name, others in graph().items():
        if name != "fxpress":
            yield from ((name, other) for other in others - {"fxpress"})


def test_there_is_no_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for name, other in edges():
        graph.setdefault(name, set()).add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_part_imports_a_part_above_it() -> None:
    for name, other in edges():
        assert level(other) <= level(name), f"{name} imports {other}"


def test_no_package_imports_a_later_package_of_its_part() -> None:
    for name, other in edges():
        if level(name) == level(other) != PUBLIC:
            (part, mine), (_, theirs) = row(name), row(other)
            same = name.split(".")[2:3] == other.split(".")[2:3]
            assert not PARTS[part] or same or theirs < mine, f"{name} imports {other}"


def test_nobody_imports_for_an_effect() -> None:
    """ruff finds modules that are imported and not used, unless they are named twice."""
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                twice = [each.name for each in node.names if each.asname == each.name]
                ours = [each for each in twice if f"{node.module}.{each}" in MODULES]
                assert not ours, f"{name} imports {ours}"

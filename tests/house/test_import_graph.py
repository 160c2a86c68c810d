"""Who imports whom among the Python modules: no circle, and no arrow up.

What a function imports counts too, but for the native modules' tables, which are filled from above.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "python"
FACADES = (
    *("split_module", "unflatten", "serialize", "archive", "state", "functional_export"),
    *("export", "decompose"),
)
# From the bottom to the top; a room may import those of the rows above it here.
LAYERS = (
    ("_errors", "_interpreter", "_native", "_aten_ext", "_replacement"),
    ("_torch",),
    (
        *("_arguments", "_aten", "_blocks", "_frame_room", "_deferred_code", "_native_setup"),
        "_pictures",
    ),
    ("_observing",),
    ("_tensor", "_engine", "_serde", "_tracing"),
    ("_archive", "_capture", "_tracking", "_unflatten"),
    ("_state", "_export"),
    ("_decompose",),
    FACADES,
    ("nn_module", "partition", "_build"),
    ("_stages",),
    ("_checkpoint",),
    ("checkpoint",),
    ("_pipeline",),
    ("pipeline",),
    ("_install",),
    ("_doctor", "_inspection"),
    ("_view",),
    ("view",),
    ("_cli",),
    ("__main__",),
)
LEVEL = {name: i for i, row in enumerate(LAYERS) for name in row}
FILLS_TABLES = "fxpress._native_setup"


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


def graph() -> dict[str, set[str]]:
    edges = {}
    for name, path in MODULES.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        edges[name] = {other for other in imported(path, package) if other in MODULES} - {name}
    return edges


GRAPH = graph()


def room(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def test_there_is_no_circle() -> None:
    # The package itself looks its names up when they are asked for.
    edges = {a: b - {"fxpress"} for a, b in GRAPH.items() if a not in ("fxpress", FILLS_TABLES)}
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_there_is_no_arrow_up() -> None:
    for name, others in GRAPH.items():
        if name in ("fxpress", FILLS_TABLES):
            continue
        for other in others - {"fxpress"}:
            mine, theirs = room(name), room(other)
            assert mine == theirs or LEVEL[theirs] < LEVEL[mine], f"{name} imports {other}"


def test_nobody_imports_for_an_effect() -> None:
    """ruff finds modules that are imported and not used, unless they are named twice."""
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                twice = [each.name for each in node.names if each.asname == each.name]
                ours = [each for each in twice if f"{node.module}.{each}" in MODULES]
                assert not ours, f"{name} imports {ours}"

"""Private names of torch occur in `fxpress._torch` and in the table of `install()` alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "python" / "fxpress"
TORCH = PACKAGE / "_torch"
# It names what it replaces.
TABLES = {PACKAGE / "_install" / "table.py"}
PATH_OF_TORCH = re.compile(r"torch(\.\w+)+")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def has_private_part(path: str) -> bool:
    return any(is_private(part) for part in path.split("."))


def is_of_torch(module: str) -> bool:
    """Whether a module is torch's, or looks up torch's names: then its attributes are torch's."""
    return module.partition(".")[0] == "torch" or module.startswith("fxpress._torch.")


def without_ours(module: str) -> str:
    return module.removeprefix("fxpress._torch")


class Finder(ast.NodeVisitor):
    """Private names of torch in a file: the texts of the expressions that have them."""

    def __init__(self, tree: ast.Module) -> None:
        self.found: list[str] = []
        self.roots: set[str] = set()  # names of the file that stand for torch's things
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for each in node.names:
                    if is_of_torch(each.name):
                        self.roots.add(each.asname or each.name.partition(".")[0])
            elif isinstance(node, ast.ImportFrom) and is_of_torch(f"{node.module}."):
                self.roots.update(each.asname or each.name for each in node.names)
        self.docstrings = {id(text) for text in docstrings(tree)}
        self.visit(tree)

    def chain(self, node: ast.expr) -> list[str] | None:
        """The parts of `torch.a.b`; None if it is not a chain that begins with torch."""
        if isinstance(node, ast.Attribute):
            before = self.chain(node.value)
            return None if before is None else [*before, node.attr]
        return [node.id] if isinstance(node, ast.Name) and node.id in self.roots else None

    def visit_Import(self, node: ast.Import) -> None:
        for each in node.names:
            if is_of_torch(each.name) and has_private_part(
                each.name.removeprefix("fxpress._torch")
            ):
                self.found.append(each.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module is None or not is_of_torch(node.module):
            return
        for each in node.names:
            path = f"{without_ours(node.module)}.{each.name}"
            if has_private_part(path):
                self.found.append(path)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        chain = self.chain(node)
        if chain is not None and any(map(is_private, chain[1:])):
            self.found.append(ast.unparse(node))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in ("getattr", "setattr", "hasattr", "delattr") and len(node.args) > 1:
            key = node.args[1]
            if (
                self.chain(node.args[0]) is not None
                and isinstance(key, ast.Constant)
                and is_private(str(key.value))
            ):
                self.found.append(ast.unparse(node))
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        text = node.value
        if (
            isinstance(text, str)
            and id(node) not in self.docstrings
            and PATH_OF_TORCH.fullmatch(text)
            and has_private_part(text)
        ):
            self.found.append(repr(text))


def docstrings(tree: ast.Module) -> Iterator[ast.expr]:
    """Texts that nobody uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def private_names(source: str) -> list[str]:
    return Finder(ast.parse(source)).found


def test_private_names_stay_in_their_package() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        if path not in TABLES and TORCH not in path.parents:
            found = private_names(path.read_text())
            assert not found, f"{path.relative_to(PACKAGE)}: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "import torch._dynamo",
        "import torch._dynamo as dynamo",
        "from torch._dynamo import config",
        "from torch.fx import _pytree",
        "from torch.fx import (\n  Graph,\n  _pytree as trees,\n)",
        "import torch\ntorch._C",
        "import torch\nx = torch.Tensor._make_subclass(",
        "import torch.nn as layers\nlayers.modules._functions",
        "from torch import nn\nnn.Module._call_impl",
        "import torch\ngetattr(torch.fx, '_pytree')",
        "import sys\nsys.modules.get('torch._inductor.ir')",
        "from fxpress._torch.serde import schema\nschema._Union",
        "from fxpress._torch import serde as compat\ncompat.schema._Union",
    ],
)
def test_each_way_to_name_something_private_is_found(source: str) -> None:
    assert private_names(source + (")" if source.endswith("(") else ""))


@pytest.mark.parametrize(
    "source",
    [
        '"""`torch._dynamo` traces."""',
        "import torch\ntorch.nn.Module.__init__",
        "from fxpress._torch import serde",
        "from fxpress._torch.fx import pytree\npytree.tree_map",
        "import torch\n'torch._dynamo traces'",
    ],
)
def test_everything_else_is_not(source: str) -> None:
    assert private_names(source) == []

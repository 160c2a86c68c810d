"""Build the tree of modules that a program was traced from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from fxpress._files.format.fields import entries_of
from fxpress._files.format.package import InspectionError
from fxpress._files.format.tensors import Tensor

MOST_MODULES = 500  # the maximum depth of nested modules


class DeepModulesError(InspectionError):
    """The path of a module in a program has too many parts for a tree of modules."""


@dataclasses.dataclass
class Weight:
    """A parameter, a buffer or a constant."""

    name: str  # its name in the state of the program
    kind: str  # "parameter", "buffer" or "constant"
    tensor: Tensor  # the weight's dtype and sizes
    record: str | None = None  # the record with its data; None if the file does not name it
    is_pickled: bool = False  # whether the record is a pickle
    offset: int | str = 0  # the offset of its first element in the record, in elements
    tied_to: str | None = None  # the first name of the same tensor; None if that is `name`


@dataclasses.dataclass
class Module:
    """A module. Counts include its submodules."""

    path: str  # the module's path from the root module; empty for the root
    class_name: str | None = None  # its class; None if no operator was traced in it
    operators: int = 0  # the number of operators that were traced in it
    parameters: int = 0  # the number of elements of its parameters
    bytes: int = 0  # the bytes of its parameters and buffers
    # Its direct submodules, by the last part of their path.
    children: dict[str, Module] = dataclasses.field(default_factory=dict)


def tree_of(stacks: Iterable[str], weights: Iterable[Weight]) -> Module:
    """Build a module tree from stacks of "key,path,class"; DeepModulesError if it is too deep."""
    root = Module("")
    counted: set[tuple[str, str]] = set()
    for stack in stacks:
        path = ""
        for path, class_name in entries_of(stack):
            *_, module = _down(root, path)
            module.class_name = class_name or module.class_name
        for module in _down(root, path):
            module.operators += 1
    for weight in weights:
        if weight.kind == "constant":
            continue
        items = 1
        for size in weight.tensor.shape:
            items *= size if isinstance(size, int) else 0
        first = weight.tied_to or weight.name
        for module in _down(root, weight.name.rpartition(".")[0]):
            if (module.path, first) not in counted:
                counted.add((module.path, first))
                module.parameters += items if weight.kind == "parameter" else 0
                module.bytes += weight.tensor.bytes or 0
    return root


def _down(root: Module, path: str) -> Iterator[Module]:
    """Yield the modules from the root to the module at `path`; create missing modules."""
    module = root
    yield module
    if path.count(".") > MOST_MODULES:
        raise DeepModulesError(f"modules are nested more than {MOST_MODULES} levels deep")
    for part in filter(None, path.split(".")):
        below = f"{module.path}.{part}" if module.path else part
        module = module.children.setdefault(part, Module(below))
        yield module


def lines_of(root: Module, depth: int = MOST_MODULES) -> Iterator[tuple[int, Module]]:
    """Yield (depth, module) for the modules down to `depth`, each before its submodules."""
    waiting = [(0, root)]
    while waiting:
        level, module = waiting.pop()
        yield level, module
        if level < depth:
            waiting += [(level + 1, each) for each in reversed(module.children.values())]

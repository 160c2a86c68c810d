"""Put the nodes of modules into nested layers, which Model Explorer calls namespaces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fxpress._files.format.fields import entries_of
from fxpress._files.format.package import InspectionError
from fxpress._tools.inspect.modules import MOST_MODULES

_LONGEST_PATH = 4000  # the maximum characters of a module's path
_LONGEST_NAME = 100  # the maximum characters of a class's name


class Namespaces:
    """The layers of a graph.

    A layer groups a module's nodes. It is a path such as "layers/0: Block/norm: LayerNorm".
    `stacks` maps a module stack, as in files, to the number of nodes that were traced in it.
    """

    def __init__(self, stacks: Mapping[str, int]) -> None:
        self._classes: dict[str, str] = {}  # path of a module -> name of its class
        self._layers: dict[str, str] = {"": ""}  # path of a module -> its layer
        self._around: dict[str, str] = {}  # path -> path of the parent module
        # Path -> counts of tensors, bytes and operators. A module comes after its parent.
        self._counts: dict[str, list[int]] = {"": [0, 0, 0]}
        self._operators = Counter[str]()  # path -> number of operators
        self._paths: dict[str, str] = {}  # stack -> path of the innermost module
        self._known: dict[str, str] = {}  # outer part of a stack -> path of its innermost module
        for stack, number in stacks.items():
            outer, _, innermost = stack.rpartition(";")
            path = self._known.get(outer)
            if path is None:
                path = self._known[outer] = self._read(outer, "")
            path = self._paths[stack] = self._read(innermost, path)
            self._operators[path] += number

    def of_stack(self, stack: str) -> tuple[str, str]:
        """Return the layer of the nodes of a stack, and the path of their module."""
        path = self._paths[stack]
        return self._layers.get(path) or self._of(path), path

    def of_state(self, path: str, size: int) -> str:
        """Count a parameter or buffer of `size` bytes in its module; return the module's layer."""
        layer = self._layers.get(path) or self._of(path)
        counts = self._counts[path]
        counts[0] += 1
        counts[1] += size
        return layer

    def attributes(self) -> dict[str, dict[str, str]]:
        """Return, for each layer, the attributes that are shown."""
        shown = {}
        totals = {path: counts.copy() for path, counts in self._counts.items()}
        for path, number in self._operators.items():
            totals[path][2] = number
        for path in reversed(totals):
            if path:
                around, (tensors, size, operators) = totals[self._around[path]], totals[path]
                around[0] += tensors
                around[1] += size
                around[2] += operators
        for path, (tensors, size, operators) in totals.items():
            facts = {"module": path} if path else {}
            if class_name := self._classes.get(path):
                facts["class"] = class_name
            if tensors:
                facts["tensors of the state"] = f"{tensors:,}"
                facts["bytes of the state"] = f"{size:,}"
            if operators:
                facts["operators"] = f"{operators:,}"
            shown[self._layers[path]] = facts
        return shown

    def _read(self, stack: str, path: str) -> str:
        """Record the classes of a stack's modules; return the last path (default: `path`)."""
        innermost = path
        for innermost, class_name in entries_of(stack):
            if self._classes.setdefault(innermost, class_name) != class_name:
                self._classes[innermost] = class_name
                self._known.clear()
        return innermost

    def _of(self, path: str) -> str:
        if path not in self._layers and (
            path.count(".") > MOST_MODULES or len(path) > _LONGEST_PATH
        ):
            most = f"{MOST_MODULES} parts or {_LONGEST_PATH} characters"
            raise InspectionError(f"the path of a module has more than {most}")
        missing = []
        while path not in self._layers:
            missing.append(path)
            path = path.rpartition(".")[0]
        layer = self._layers[path]
        for whole in reversed(missing):
            text = self._text(whole)
            layer = self._layers[whole] = f"{layer}/{text}" if layer else text
            self._around[whole], path = path, whole
            self._counts[whole] = [0, 0, 0]
        return layer

    def _text(self, path: str) -> str:
        own = path.rpartition(".")[2]
        class_name = self._classes.get(path, "").rpartition(".")[2]
        text = f"{own}: {class_name[:_LONGEST_NAME]}" if class_name else own
        return text.replace("/", "\u2215")  # a slash would begin a nested layer

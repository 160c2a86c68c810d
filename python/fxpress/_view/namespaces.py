"""Nested layers: the modules of a program, as the namespaces of Model Explorer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from fxpress._inspection.modules import MOST_MODULES, entries_of
from fxpress._inspection.package import InspectionError
from fxpress._view.shared import Once

_LONGEST_PATH = 4000  # characters
_LONGEST_NAME = 100  # characters of the name of a class
_TENSORS, _BYTES, _OPERATORS = "tensors of the state", "bytes of the state", "operators"


class Namespaces:
    """The layers of a graph.

    A layer has the name of a module and its class, such as "layers/0: Block/norm: LayerNorm".

    Args:
        stacks: the modules in which nodes were traced, as files have them, and how many nodes.

    Attributes:
        of_stack: such modules -> the layer of their nodes.
    """

    def __init__(self, stacks: Mapping[str, int]) -> None:
        self._classes: dict[str, str] = {}  # path of a module -> name of its class
        self._layers: dict[str, str] = {"": ""}  # path of a module -> its layer
        self._counts: dict[str, dict[str, int]] = {}  # path -> what is counted there -> number
        self._operators = Counter[str]()  # path -> number
        self._paths: dict[str, str] = {}  # stack -> path of the innermost module
        self._known: dict[str, str] = {}  # the same, for stacks whose classes need no second look
        for stack, number in stacks.items():
            outer, _, innermost = stack.rpartition(";")
            path = self._known.get(outer)
            if path is None:
                path = self._known[outer] = self._read(outer, "")
            path = self._paths[stack] = self._read(innermost, path)
            self._operators[path] += number
        self.of_stack = Once[str, str](lambda stack: self._of(self._paths[stack]))

    def of_state(self, path: str, size: int) -> str:
        """Return the layer of a parameter or buffer, which is counted in it.

        Args:
            path: the path of its module.
            size: its bytes.
        """
        counts = self._counts.get(path)
        if counts is None:
            counts = self._counts[path] = {_TENSORS: 0, _BYTES: 0}
        counts[_TENSORS] += 1
        counts[_BYTES] += size
        return self._layers.get(path) or self._of(path)

    def attributes(self) -> dict[str, dict[str, str]]:
        """Return what is to be shown of each layer."""
        shown = {}
        texts = Once[int, str](lambda number: f"{number:,}")
        totals = {path: dict(self._counts.get(path, ())) for path in self._layers}
        for path, number in self._operators.items():
            totals[path][_OPERATORS] = number
        for path in reversed(self._layers):  # a module stands behind that around it
            if path:
                around = totals[path.rpartition(".")[0]]
                for what, number in totals[path].items():
                    around[what] = around.get(what, 0) + number
        for path, layer in self._layers.items():
            facts = {"module": path} if path else {}
            if class_name := self._classes.get(path):
                facts["class"] = class_name
            for what, number in totals[path].items():
                facts[what] = texts[number]
            shown[layer] = facts
        return shown

    def _read(self, stack: str, path: str) -> str:
        """Note the classes of a stack's modules; return the path of the innermost one.

        Args:
            stack: the modules.
            path: that of the module around them, which is returned where there are none.
        """
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
            raise InspectionError(f"a module whose path has more than {most}")
        missing = []
        while path not in self._layers:
            missing.append(path)
            path = path.rpartition(".")[0]
        outer = self._layers[path]
        for whole in reversed(missing):
            text = self._text(whole)
            outer = self._layers[whole] = f"{outer}/{text}" if outer else text
        return outer

    def _text(self, path: str) -> str:
        own = path.rpartition(".")[2]
        class_name = self._classes.get(path, "").rpartition(".")[2]
        text = f"{own}: {class_name[:_LONGEST_NAME]}" if class_name else own
        return text.replace("/", "\u2215")  # a slash begins a layer within this one

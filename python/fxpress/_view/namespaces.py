"""Nested layers: the modules of a program, as the namespaces of Model Explorer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fxpress._inspection.modules import MOST_MODULES, entries_of
from fxpress._inspection.package import InspectionError

_LONGEST_PATH = 4000  # characters
_LONGEST_NAME = 100  # characters of the name of a class


class Namespaces:
    """The layers of a graph.

    A layer has the name of a module and its class, such as "layers/0: Block/norm: LayerNorm".

    Args:
        stacks: of each node, the modules in which it was traced, as files have them.
    """

    def __init__(self, stacks: Iterable[str]) -> None:
        self._classes: dict[str, str] = {}  # path of a module -> name of its class
        self._layers: dict[str, str] = {"": ""}  # path of a module -> its layer
        self._counts: dict[str, dict[str, int]] = {}  # path -> what is counted there -> number
        self._operators = Counter[str]()  # path -> number
        self._paths: dict[str, str] = {}  # stack -> path of the innermost module
        for stack in stacks:
            if stack not in self._paths:
                path = ""
                for path, class_name in entries_of(stack):
                    self._classes[path] = class_name
                self._paths[stack] = path

    def of_stack(self, stack: str) -> str:
        """Return the layer of a node, which is counted in it."""
        path = self._paths.get(stack, "")
        self._operators[path] += 1
        return self._layers.get(path) or self._of(path)

    def of_state(self, name: str) -> str:
        """Return the layer of a parameter or buffer."""
        return self._of(name.rpartition(".")[0])

    def count(self, name: str, size: str) -> None:
        """Count a parameter or buffer, and its bytes."""
        path = name.rpartition(".")[0]
        self._count(path, "tensors of the state", 1)
        self._count(path, "bytes of the state", int(size.replace(",", "") or 0))

    def attributes(self) -> dict[str, dict[str, str]]:
        """Return what is to be shown of each layer."""
        shown = {}
        for path, number in self._operators.items():
            self._count(path, "operators", number)
        totals = {path: dict(self._counts.get(path, {})) for path in self._layers}
        for path in reversed(self._layers):  # a module stands behind that around it
            around = totals[path.rpartition(".")[0]] if path else {}
            for what, number in totals[path].items():
                around[what] = around.get(what, 0) + number
        for path, layer in self._layers.items():
            facts = {"module": path, "class": self._classes.get(path, "")}
            facts |= {what: f"{n:,}" for what, n in totals[path].items()}
            shown[layer] = {what: text for what, text in facts.items() if text}
        return shown

    def _of(self, path: str) -> str:
        known = self._layers.get(path)
        if known is not None:
            return known
        if path.count(".") > MOST_MODULES or len(path) > _LONGEST_PATH:
            most = f"{MOST_MODULES} parts or {_LONGEST_PATH} characters"
            raise InspectionError(f"a module whose path has more than {most}")
        outer = ""
        for end in [*(i for i, char in enumerate(path) if char == "."), len(path)]:
            whole = path[:end]
            if whole not in self._layers:
                self._layers[whole] = f"{outer}/{self._text(whole)}" if outer else self._text(whole)
            outer = self._layers[whole]
        return outer

    def _text(self, path: str) -> str:
        own = path.rpartition(".")[2]
        class_name = self._classes.get(path, "").rpartition(".")[2]
        text = f"{own}: {class_name[:_LONGEST_NAME]}" if class_name else own
        return text.replace("/", "\u2215")  # a slash begins a layer within this one

    def _count(self, path: str, what: str, number: int) -> None:
        counts = self._counts.setdefault(path, {})
        counts[what] = counts.get(what, 0) + number

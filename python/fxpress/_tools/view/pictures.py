"""Draw the partitions of a program, or the tree of its modules, as an SVG for a page."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ET
from collections import Counter
from typing import Any

from fxpress._base.errors import UnsupportedError
from fxpress._base.observing.text import bytes_text, counted_text, printable
from fxpress._tools.inspect.modules import Module
from fxpress._tools.view.kinds import partition_of
from fxpress._tools.view.nodes import Graph, Value

_MOST_CHILDREN = 6  # of a module that are drawn
_MOST_MODULES = 30
_MOST_PARTITIONS = 100
_DEPTH = 3
_LONGEST = 40  # characters of a line
_SVG = "{http://www.w3.org/2000/svg}"
# What Graphviz draws boxes, arrows and texts with; nothing else gets into a page.
_ELEMENTS = frozenset(("svg", "g", "path", "polygon", "text", "title"))
_ATTRIBUTES = frozenset(
    (
        *("width", "height", "viewBox", "transform", "fill", "stroke", "stroke-dasharray"),
        *("points", "d", "x", "y", "text-anchor", "font-family", "font-size"),
    )
)


@dataclasses.dataclass
class Picture:
    """A picture of a program."""

    title: str  # what it shows
    svg: str  # the element; every text and attribute in it is escaped


def picture_of(graph: Graph, root: Module, flops: dict[str, int]) -> Picture:
    """Draw the partitions of a program, or its tree of modules; UnsupportedError: it cannot."""
    try:
        import graphviz

        from fxpress._base.pictures import svg_of
    except ImportError as missing:
        raise UnsupportedError(
            "the picture needs the packages of pip install 'fxpress[report]'"
        ) from missing
    drawn = graphviz.Digraph("picture", node_attr={"shape": "box", "fontsize": "11"})
    drawn.attr(rankdir="LR")
    partitions = _Partitions(graph, flops)
    if partitions.operators:
        title = "Partitions, and the values that pass between them"
        partitions.draw(drawn, graphviz.escape)
    else:
        title = "Tree of modules"
        _draw_modules(drawn, root, graphviz.escape)
    try:
        return Picture(title, _safe(svg_of(drawn.source)))
    except (RuntimeError, ET.ParseError) as error:
        raise UnsupportedError(f"the picture cannot be drawn: {error}") from None


def _line(text: str) -> str:
    text = printable(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _draw_modules(drawn: Any, root: Module, escape: Any) -> None:
    """Draw modules with the ones that they consist of; many of one module are a box."""
    waiting = [(0, "", root)]
    drawn_count = 0
    while waiting:
        depth, above, module = waiting.pop(0)
        box = f"m{drawn_count}"
        drawn_count += 1
        name = module.path.rpartition(".")[2] or "(root)"
        class_name = (module.class_name or "").rpartition(".")[2]
        sizes = f"{counted_text(module.operators, 'operator')}, {bytes_text(module.bytes)}"
        lines = [_line(f"{name} {class_name}".strip()), sizes]
        drawn.node(box, escape("\n".join(lines)))
        if above:
            drawn.edge(above, box)
        children = list(module.children.values())
        if not children:
            continue
        component = min(_MOST_CHILDREN, _MOST_MODULES - drawn_count - len(waiting))
        shown = children[: max(component, 0)] if depth < _DEPTH else []
        waiting += [(depth + 1, box, child) for child in shown]
        if left := len(children) - len(shown):
            drawn.node(f"{box}_more", f"{left:,} more", style="dashed")
            drawn.edge(box, f"{box}_more")


class _Partitions:
    """What each partition of a graph does, and which values it takes from others."""

    def __init__(self, graph: Graph, flops: dict[str, int]) -> None:
        self.operators = Counter[int]()
        self._flops = Counter[int]()
        self._state: dict[int, dict[str, int]] = {}
        self._values: dict[tuple[int, int], dict[tuple[str, int], Value]] = {}
        numbers = {node.id: partition_of(node.module) for node in graph.nodes}
        for node in graph.nodes:
            number = numbers[node.id]
            if number is None or node.target is None:
                continue
            self.operators[number] += 1
            self._flops[number] += flops.get(node.id, 0)
            for given in node.arguments:
                source = given.node
                if source.state:
                    size = source.result_bytes() or 0
                    self._state.setdefault(number, {})[source.id] = size
                elif (other := numbers[source.id]) is not None and other != number:
                    values = self._values.setdefault((other, number), {})
                    values[source.id, given.output] = given.value

    def draw(self, drawn: Any, escape: Any) -> None:
        """Draw a box for each partition, and an arrow for all values between two."""
        shown = sorted(self.operators)[:_MOST_PARTITIONS]
        for number in shown:
            lines = [
                f"submod_{number}",
                counted_text(self.operators[number], "operator"),
                f"{bytes_text(sum(self._state.get(number, {}).values()))} of state",
                f"{self._flops[number]:,} FLOPs",
            ]
            drawn.node(f"p{number}", escape("\n".join(lines)))
        if left := len(self.operators) - len(shown):
            drawn.node("more", f"{left:,} more", style="dashed")
        for (source, target), values in sorted(self._values.items()):
            if source in shown and target in shown:
                sizes = [each.bytes for each in values.values() if each.bytes is not None]
                text = counted_text(len(values), "value")
                text += f"\n{bytes_text(sum(sizes))}" if len(sizes) == len(values) else ""
                drawn.edge(f"p{source}", f"p{target}", escape(text))


def _safe(svg: str) -> str:
    """Return an SVG with only the elements and attributes that pictures need."""
    root = ET.fromstring(svg)
    made = _kept(root)
    waiting = [(root, made)]
    while waiting:
        source, target = waiting.pop()
        for child in source:
            tag = child.tag.removeprefix(_SVG) if isinstance(child.tag, str) else ""
            if tag in _ELEMENTS - {"title"}:  # titles are names of boxes, such as "p0"
                inner = _kept(child)
                target.append(inner)
                waiting.append((child, inner))
    made.set("role", "img")
    return ET.tostring(made, encoding="unicode", short_empty_elements=False)


def _kept(element: ET.Element) -> ET.Element:
    tag = str(element.tag).removeprefix(_SVG)
    kept = ET.Element(tag, {k: v for k, v in element.items() if k in _ATTRIBUTES})
    kept.text = element.text if tag == "text" else None
    return kept

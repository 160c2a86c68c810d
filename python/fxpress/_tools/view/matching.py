"""Match the nodes of two programs, independently of their names.

Nodes with equal hashes compute the same, as in `fxpress.diff`. Other nodes are matched by operator
and order: first within modules with the same path, then within the entire programs.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from difflib import SequenceMatcher

from fxpress._tools.view.nodes import Graph, Node

SAME = "same"
CHANGED = "changed"
FOLLOWS = "follows"  # only the values that the node is computed from differ
ALONE = "only here"
_MOST_STEPS = 250_000  # the maximum product of the lengths of two sequences to compare
_MOST_IN_ALL = 20_000_000  # the maximum sum of these products in a comparison of two programs


@dataclasses.dataclass
class Matching:
    """The correspondence of the nodes of two graphs."""

    pairs: dict[str, str]  # id of a node of the first graph -> id of its counterpart
    # For the first and second graph: id of a node -> SAME, CHANGED, FOLLOWS or ALONE.
    states: tuple[dict[str, str], dict[str, str]]


def match(first: Graph, second: Graph, hashes: tuple[list[bytes], list[bytes]]) -> Matching:
    """Match the nodes of two programs' top-level graphs; `hashes` has their operators' hashes."""
    made = _Matcher(first, second, hashes)
    states, back = made.states, made.back
    others = {n.id: states[back[n.id]] if n.id in back else ALONE for n in second.nodes}
    return Matching(made.pairs, (states, others))


class _Matcher:
    def __init__(
        self, first: Graph, second: Graph, hashes: tuple[list[bytes], list[bytes]]
    ) -> None:
        self._graphs = first, second
        self._others = {node.id: node for node in second.nodes}
        self.pairs: dict[str, str] = {}
        self._same: set[str] = set()  # ids of nodes of the first graph that are SAME
        self._steps_left = _MOST_IN_ALL
        self._pair_in_order("input ", _state_key)
        self._pair_in_order("input ", _input_key)
        self.pairs["output"] = "output"
        self._match_equal(hashes)
        self._match_similar()
        self.back = {theirs: mine for mine, theirs in self.pairs.items()}
        self.states: dict[str, str] = {}  # id of a node of the first graph -> state
        for node in first.nodes:
            self.states[node.id] = self._state(node)

    def _left(self, side: int, prefix: str) -> list[Node]:
        known = self.pairs.keys() if side == 0 else set(self.pairs.values())
        nodes = self._graphs[side].nodes
        return [n for n in nodes if n.id.startswith(prefix) and n.id not in known]

    def _pair_in_order(self, prefix: str, *keys: Callable[[Node], Hashable]) -> list[str]:
        """Pair the remaining nodes with equal keys; return the ids of the first graph's nodes.

        Ids must begin with `prefix`. `keys[0]` is for the first graph, `keys[-1]` for the second.
        """
        others: dict[Hashable, deque[str]] = defaultdict(deque)
        for node in self._left(1, prefix):
            others[keys[-1](node)].append(node.id)
        found = []
        for node in self._left(0, prefix):
            if queue := others.get(keys[0](node)):
                self.pairs[node.id] = queue.popleft()
                found.append(node.id)
        return found

    def _match_equal(self, hashes: tuple[list[bytes], list[bytes]]) -> None:
        mine, theirs = (
            {f"node {number}": digest for number, digest in enumerate(digests)}
            for digests in hashes
        )
        of_mine, of_theirs = (lambda node: mine[node.id]), (lambda node: theirs[node.id])
        self._same.update(self._pair_in_order("node ", of_mine, of_theirs))

    def _match_similar(self) -> None:
        by_module: list[dict[str, list[Node]]] = [defaultdict(list), defaultdict(list)]
        for side, modules in enumerate(by_module):
            for node in self._left(side, "node "):
                modules[node.module].append(node)
        for path, mine in by_module[0].items():
            self._align(mine, by_module[1].get(path, []))
        self._align(self._left(0, "node "), self._left(1, "node "))
        self._pair_in_order("node ", _target)

    def _align(self, mine: list[Node], theirs: list[Node]) -> None:
        """Pair nodes in the longest equal runs of operators, and nodes between runs in order."""
        steps = len(mine) * len(theirs)
        if not 0 < steps <= min(_MOST_STEPS, self._steps_left):
            return  # `_match_similar` pairs the nodes in order
        self._steps_left -= steps
        targets, others = ([_target(node) for node in nodes] for nodes in (mine, theirs))
        matcher = SequenceMatcher(None, targets, others, autojunk=False)
        for kind, start, end, other, other_end in matcher.get_opcodes():
            if kind in ("equal", "replace"):
                for one, two in zip(mine[start:end], theirs[other:other_end], strict=False):
                    self.pairs[one.id] = two.id

    def _state(self, node: Node) -> str:
        other = self.pairs.get(node.id)
        if other is None:
            return ALONE
        if node.id in self._same:
            return SAME
        counterpart = self._others[other]
        if comparable(node) != comparable(counterpart):
            return CHANGED
        sources = [(each.node.id, each.output) for each in node.arguments]
        theirs = [(self.back.get(e.node.id), e.output) for e in counterpart.arguments]
        if sources != theirs:
            return CHANGED
        if any(self.states[source] != SAME for source, _ in sources):
            return FOLLOWS
        # Only the hashes differ. For an operator, the reason is the order of writes or effects.
        return SAME if node.target is None else CHANGED


def comparable(node: Node) -> dict[str, str]:
    """Return a node's properties except its inputs; equal for nodes that compute the same."""
    facts = {"target": node.target or "", "kind": node.kind, "state": node.state}
    facts["persistent"] = node.persistent
    computed = {f"output {each.name}" for each in node.arguments} if node.id == "output" else ()
    facts |= {name: "" if name in computed else text for name, text in node.constants}
    for number, value in enumerate(node.results):
        facts[f"result {number}"] = "" if value.tensor is None else str(value.tensor.tensor)
        facts |= value.tensor.shown() if value.tensor and node.target is None else {}
    return {**facts, "arguments": ", ".join(each.name for each in node.arguments)}


def _target(node: Node) -> str:
    return node.target or ""


def _input_key(node: Node) -> tuple[str, ...]:
    """Return the kind of an input, and the types of its values."""
    return node.kind, *("" if v.tensor is None else str(v.tensor.tensor) for v in node.results)


def _state_key(node: Node) -> tuple[str, str]:
    """Return a key of an input: its type, and the name if it is state."""
    return node.kind, node.state

"""Collect the places of a program at which symbolic expressions stand."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, NamedTuple

from fxpress._files.format.fields import a_list, a_text, an_object, one_of

SIZE, STRIDE, OFFSET, INT, OTHER = "size", "stride", "offset", "int", "other"  # roles
_PARTS = {"sizes": SIZE, "strides": STRIDE}
_TABLES = {"sym_int_values": INT, "sym_float_values": OTHER, "sym_bool_values": OTHER}
_NAME = re.compile(r"\w+")
_USE_BYTES = 300  # of objects for a place, besides its texts
_EXPRESSION_BYTES = 1500  # of objects for what is known of an expression
_SYMBOL_BYTES = 800  # and of each symbol in it
_CONSTRAINING = ("sym_constrain_range", "_assert_scalar")  # operators that give symbols ranges


class Use(NamedTuple):
    """A place of an expression.

    Attributes:
        place: its path.
        role: what the expression is there.
        text: the expression.
        hint: kind and value of what it was for the example inputs; None where that is not known.
    """

    place: str
    role: str
    text: str
    hint: tuple[str, Any] | None


class Uses:
    """The expressions of a program.

    Args:
        ranges: the ranges of symbols, as the program has them.
        left: the bytes that the objects for expressions may take.

    Attributes:
        found: the places, in order.
        is_cut: there are more than that, of which nothing is known.
        ranged: names of symbols that a load gives a range.
        is_constrained: whether operators may give a range to symbols whose value is not known.
    """

    def __init__(self, ranges: dict[str, Any], left: int) -> None:
        self._left = left
        self._texts: set[str] = set()
        self.is_cut = False
        self.found: list[Use] = []
        self.ranged = {name for key in ranges for name in _NAME.findall(key)}
        self.is_constrained = False

    def note_operator(self, target: str) -> None:
        """Note an operator of a graph."""
        self.is_constrained |= any(name in target for name in _CONSTRAINING)

    def note_graph(self, graph: dict[str, Any], names: Collection[str], place: str) -> None:
        """Note what a graph says of its values; a load reads nothing of others.

        Args:
            graph: the graph.
            names: the values that its inputs and nodes give.
            place: the path of the graph.

        Raises:
            KeyError, TypeError: a field is damaged.
        """
        for name, meta in an_object(graph["tensor_values"]).items():
            if name in names:
                self._note_tensor(meta, f"{place}.tensor_values[{name!r}]")
        for table, role in _TABLES.items():
            for name, number in an_object(graph[table]).items():
                if name in names:
                    self._note_number(number, f"{place}.{table}[{name!r}]", role)

    def _note_tensor(self, meta: dict[str, Any], place: str) -> None:
        before = len(self.found)
        offset, start = one_of(meta["storage_offset"])
        for part, role in _PARTS.items():
            # Where torch cannot place a tensor, a load takes it from the start of its storage.
            of = role if offset == "as_int" else INT
            for number, size in enumerate(a_list(meta[part])):
                self._note_number(size, f"{place}.{part}[{number}]", of)
        self._note_number(meta["storage_offset"], f"{place}.storage_offset", OFFSET)
        if start != 0:  # a load takes the symbols of the tensor for sizes
            for use in self.found[before:]:
                self.ranged.update(_NAME.findall(use.text))

    def _note_number(self, number: Any, place: str, role: str) -> None:
        kind, held = one_of(number)
        if kind == "as_expr":
            hint = an_object(held).get("hint")
            known = one_of(hint) if hint is not None else None
            use = Use(place, role, a_text(held["expr_str"]), known)
            if self._has_space(use):
                self.found.append(use)

    def _has_space(self, use: Use) -> bool:
        self._left -= _USE_BYTES + len(use.place)
        if use.text not in self._texts and not self.is_cut:
            self._texts.add(use.text)
            # What is read of a text, and of its tokens, which are together as long.
            symbols = 1 + use.text.count("Symbol(")
            self._left -= _EXPRESSION_BYTES + symbols * _SYMBOL_BYTES
        self.is_cut |= self._left < 0
        return not self.is_cut

"""Look at the metadata of nodes: where each comes from, and in which modules it was traced."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fxpress import _native
from fxpress._base.errors import Error
from fxpress._files.format.fields import DEPTH
from fxpress._files.format.torch_facts import schema
from fxpress._tools.inspect.findings import Found

_BETWEEN = ";"
_BRACKET = re.compile(r"[\[\]()]")
_NUMBER_OF_PARTS = 3  # of an entry of a stack of modules: key, path, class


class Metadata:
    """Looks at the metadata of the nodes of a program; equal texts are looked at once.

    Args:
        left: the bytes that the objects for a text may take.
    """

    def __init__(self, left: int) -> None:
        self._left = left
        self._seen: set[tuple[str, str]] = set()

    def check(self, metadata: dict[str, str]) -> Found:
        """Yield what is wrong with the metadata of a node."""
        for key, look in _LOOKS.items():
            text = metadata.get(key)
            if text and (key, text) not in self._seen:
                self._seen.add((key, text))
                yield from look(text, self._left)


def _check_sources(text: str, left: int) -> Found:
    """Look at the nodes that a node was made of, which are JSON within the JSON."""
    try:
        whole = f'{{"from_node": {text}}}'.encode("utf-8", "surrogatepass")
        schema().read(whole, "NodeSource", _native.Budget(left, DEPTH))
    except (ValueError, Error) as e:  # Error: another part of this process has imported torch
        yield f"from_node is damaged: {e}", False


def _check_functions(text: str, _: int) -> Found:
    for entry in text.split(_BETWEEN):
        if entry.count(",") != 1:
            yield f"an entry of source_fn_stack is not a pair: {entry[:80]!r}", False
        elif entry.partition(",")[2].startswith("#"):
            yield f"source_fn_stack names a function of an extension: {entry[:80]!r}", True


def _check_modules(text: str, _: int) -> Found:
    for entry in text.split(_BETWEEN):
        parts = 1 + entry.count(",") - sum(inner.count(",") for inner in _within_brackets(entry))
        if parts != _NUMBER_OF_PARTS:
            said = f"an entry of nn_module_stack has {parts} parts, not {_NUMBER_OF_PARTS}"
            yield f"{said}: {entry[:80]!r}", False


def _within_brackets(entry: str) -> Iterator[str]:
    """Yield the parts of a text at which a bracket is open, or was closed before it was opened."""
    depth = start = 0
    for found in _BRACKET.finditer(entry):
        if depth:
            yield entry[start : found.start()]
        depth += 1 if found[0] in "[(" else -1
        start = found.end()
    if depth:
        yield entry[start:]


def _check_custom(text: str, _: int) -> Found:
    if _native.is_nested_deeper(text, DEPTH):
        yield f"its custom metadata have more than {DEPTH} values within each other", False


_LOOKS = {
    "nn_module_stack": _check_modules,
    "source_fn_stack": _check_functions,
    "custom": _check_custom,
    "from_node": _check_sources,
}

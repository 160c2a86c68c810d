"""torch's callers of split_module with fxpress installed, and a backend that splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.fx import GraphModule, Node

import fxpress
from fxpress import _native
from fxpress.split_module import split_module
from tests.support.split_cases import assert_split_as_torch

ATTENTION = (
    torch._C._nn.scaled_dot_product_attention,
    torch.ops.aten.scaled_dot_product_attention.default,
)


@contextmanager
def in_torchs_place() -> Iterator[list[GraphModule]]:
    """Install fxpress for a block; yield the split modules, and fail if nothing was split."""
    split: list[GraphModule] = []
    native = _native.split_module

    def recorded(module: GraphModule, *args: Any) -> GraphModule:
        split.append(module)
        return native(module, *args)

    with mock.patch.object(_native, "split_module", recorded), fxpress.installed():
        yield split
    assert split, "fxpress was not called"


def around(module: GraphModule, targets: tuple[Any, ...]) -> Callable[[Node], int]:
    """vLLM's callback: each node with one of the targets is alone in its partition."""
    ids: dict[Node, int] = {}
    current = 0
    for node in module.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        alone = node.target in targets
        current += alone
        ids[node] = current
        current += alone
    return ids.__getitem__


class Piece:
    """Replaces a submodule, as vLLM does: calls the submodule, and counts the calls."""

    def __init__(self, module: GraphModule) -> None:
        self.module = module
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        self.calls += 1
        return self.module(*args)


def replace_submodules(split: GraphModule) -> list[Piece]:
    """Overwrite the submodules in the instance's `__dict__`, as vLLM does."""
    pieces = []
    for name in [n for n, _ in split.named_children() if n in split.meta["partition_names"]]:
        pieces.append(Piece(split.get_submodule(name)))
        split.__dict__[name] = pieces[-1]
    return pieces


class SplittingBackend:
    """A backend for torch.compile that splits Dynamo's graph with fxpress, and checks the split.

    Args:
        callback: returns the split callback for a graph.
        compile_piece: compiles a submodule for the inputs of its first call; None: submodules are
            not compiled.
        prepare: edits the graph before the split.
        as_torch: whether torch's split is correct, so that fxpress's must equal it.
        options: keyword arguments of split_module.
    """

    def __init__(
        self,
        callback: Callable[[GraphModule], Callable[[Node], int]],
        *,
        compile_piece: Callable[[GraphModule, list[Any]], Callable[..., Any]] | None = None,
        prepare: Callable[[GraphModule], object] = lambda module: None,
        as_torch: bool = True,
        **options: Any,
    ) -> None:
        self.callback, self.prepare, self.options = callback, prepare, options
        self.compile_piece, self.as_torch = compile_piece, as_torch
        self.sources: list[GraphModule] = []
        self.splits: list[GraphModule] = []
        self.pieces: list[Piece] = []

    def __call__(self, module: GraphModule, example: list[Any]) -> Callable[..., Any]:
        self.prepare(module)
        callback = self.callback(module)
        self.sources.append(module)
        if self.as_torch:
            assert assert_split_as_torch(module, callback, **self.options) is not None
        split = split_module(module, None, callback, **self.options)
        self.splits.append(split)
        self.pieces = replace_submodules(split)
        if self.compile_piece is not None:
            for piece in self.pieces:
                compile_when_called(piece, self.compile_piece)
        return split

    def placeholders(self) -> list[tuple[str, Node]]:
        """Return (name of the submodule, node) for each placeholder in the last split."""
        return [
            (name, node)
            for name, child in self.splits[-1].named_children()
            if name in self.splits[-1].meta["partition_names"]
            for node in child.graph.find_nodes(op="placeholder")
        ]


def compile_when_called(
    piece: Piece, compile_piece: Callable[[GraphModule, list[Any]], Callable[..., Any]]
) -> None:
    module = piece.module

    def first_call(*args: Any) -> Any:
        example = [n.meta["example_value"] for n in module.graph.find_nodes(op="placeholder")]
        piece.module = compile_piece(module, example)
        return piece.module(*args)

    piece.module = first_call

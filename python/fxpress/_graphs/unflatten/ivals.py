"""Intermediate values of mutations, recorded as torch records them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
import torch.fx

from fxpress._torch import fx as torch_fx


class _IVals:
    """Names of intermediate values of mutations that were read, by module.

    Stands in for `torch.export.unflatten._IVals`. The native pass has its own record and does not
    use this class; callers that have an instance do.
    """

    def __init__(self) -> None:
        self.node_names_by_fqn: defaultdict[str, set[str]] = defaultdict(set)

    def _is_mutable(self, target: object) -> bool:
        return isinstance(target, torch_fx.OpOverload) and bool(target._schema.is_mutable)

    def read(self, mf: Any, node: torch.fx.Node) -> Any:
        """Return the node of the frame's graph that holds the intermediate value `node`."""
        if node.op != "call_function":
            raise AssertionError(f"expected node.op to be 'call_function', got {node.op!r}")
        if not self._is_mutable(node.target):
            fqn, _ = next(reversed(node.meta["nn_module_stack"].values()))
            self.node_names_by_fqn[fqn].add(node.name)
        return mf.remap_input(node.args[0])

    def update(self, partitions: Any) -> None:
        """Write every value that was read into the state that it is a value of."""
        for entry in (entry for entries in partitions for entry in entries):
            graph = entry.module.graph
            names = self.node_names_by_fqn[entry.fqn]
            for node in [node for node in graph.nodes if node.name in names]:
                with graph.inserting_after(node):
                    write = graph.call_function(torch.ops.aten.copy_.default, (node.args[0], node))
                write.meta = dict(node.meta)

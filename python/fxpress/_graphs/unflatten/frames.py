"""Implement torch's `_ModuleFrame` and its helpers with the native pass.

`torch.distributed.pipelining` builds the root frame and runs it.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from fxpress import _native
from fxpress._base.errors import UnsupportedError
from fxpress._graphs.unflatten import aliases, modules, source
from fxpress._graphs.unflatten.attributes import _call_name
from fxpress._graphs.unflatten.switch import runs_with_interpreter
from fxpress._torch import export as torch_export
from fxpress._torch.fx import fx_pytree, pytree


@dataclass
class _SubmoduleEntry:
    """One call of a module. Stands in for `torch.export.unflatten._SubmoduleEntry`."""

    parent_fqn: str
    parent_module: torch.nn.Module
    parent_call_module: torch.fx.Node
    fqn: str
    call_idx: int  # the number of the call, from 1
    module: torch.nn.Module


def _add_spec(gm: torch.nn.Module, spec: Any) -> str:
    """Store a tree spec under the first free name `_spec_<i>`, and return the name."""
    i = 0
    while hasattr(gm, f"_spec_{i}"):
        i += 1
    setattr(gm, f"_spec_{i}", spec)
    return f"_spec_{i}"


def _generate_flatten(gm: Any, node: Any) -> torch.fx.Node:
    """Add nodes that flatten the value of `node`, and return the node of the list of leaves."""
    flat = gm.graph.call_function(pytree.tree_flatten, (node,))
    return gm.graph.call_function(operator.getitem, (flat, 0))


def _generate_flatten_spec(gm: Any, node: Any, spec: Any) -> torch.fx.Node:
    """Store `spec` on the module, add nodes that flatten `node` by `spec`; return the leaves."""
    spec_node = gm.graph.create_node("get_attr", _add_spec(gm, spec))
    return gm.graph.call_function(fx_pytree.tree_flatten_spec, (node, spec_node))


def _generate_unflatten(gm: Any, nodes: Any, spec: Any) -> torch.fx.Node:
    """Store `spec` on the module, add nodes that unflatten `nodes` by `spec`; return the value."""
    spec_node = gm.graph.create_node("get_attr", _add_spec(gm, spec))
    return gm.graph.call_function(pytree.tree_unflatten, (nodes, spec_node))


class _ModuleFrame:
    """The frame of the root module. It moves the nodes of all other modules into their own graphs.

    Stands in for the root frame of `torch.export.unflatten._ModuleFrame`: `run_outer` fills the
    graph of `module`, and the arguments `seen_…`. Frames of submodules exist in C++ only.

    Raises:
        UnsupportedError: `parent` is not None, or `module` is None.
    """

    def __init__(
        self,
        flat_graph: torch.fx.Graph,
        nodes: tuple[torch.fx.Node, ...],
        seen_nodes: dict[str, torch.fx.Node],
        seen_modules: dict[Any, list[_SubmoduleEntry]],
        seen_attrs: dict[str, set[str]],
        created_modules: dict[str, torch.nn.Module],
        parent: Any,
        module_stack: list[tuple[str, str | None, int]],
        module_id: str,
        module_call_graph: dict[str, Any],
        module: Any = None,
    ) -> None:
        if parent is not None or module is None:
            raise UnsupportedError(
                "_ModuleFrame: expected parent=None and a module, because only a root frame can be "
                "created; run_outer() of the root frame unflattens the submodules too"
            )
        self.flat_graph = flat_graph
        self.nodes = nodes
        self.seen_nodes = seen_nodes
        self.seen_modules = seen_modules
        self.seen_attrs = seen_attrs
        self.created_modules = created_modules
        self.parent = parent
        self.module_stack = module_stack
        self.module_id = module_id
        self.module_call_graph = module_call_graph
        self.verbose = False
        self.fqn, _, number = module_stack[-1]
        self.child_fqn = _call_name(self.fqn, number + 1)
        self.module = module
        self.ivals = getattr(module, "ivals", {})
        self.graph = module.graph
        self.node_map: dict[torch.fx.Node, torch.fx.Node] = {}
        self.node_to_placeholder: dict[torch.fx.Node, torch.fx.Node] = {}
        self.parent_call_module: torch.fx.Node | None = None

    def run_outer(self) -> None:
        """Divide the entire flat graph among the graphs of the module and its submodules."""
        calls, attributes = _native.outline_submodules(
            {
                "graph": self.flat_graph,
                "owner": self.flat_graph.owning_module or self.module,
                "may_alias": aliases.may_alias,
                "parts": torch_export.INNER_TENSOR_TARGETS,
                "mutations": [],
                "signatures": source.signatures(self.module_call_graph),
                "with_signature": [],
                "state": None,
                "paths": [],
                "interpreter": modules.InterpreterModule,
                "dispatcher": modules.InterpreterModuleDispatcher,
                "run_with_interpreter": runs_with_interpreter(),
                "drop_dead_code": False,
            },
            self.module,
        )
        for call in calls:
            self.seen_modules[call[0]].append(_SubmoduleEntry(*call[1:]))
        owner = self.flat_graph.owning_module
        for call_name, target, holder in attributes:
            self.seen_attrs[call_name].add(target)
            # Copy bodies of higher-order operators, which torch.distributed.pipelining does not do.
            if owner is not None and not hasattr(holder, target):
                setattr(holder, target, getattr(owner, target))
        self.seen_nodes.update((node.name, node) for node in self.flat_graph.nodes)

    def add_placeholder(self, x: torch.fx.Node) -> None:
        """Raise AssertionError, because the root module's inputs are fixed."""
        raise AssertionError(f"Cannot add placeholder {x} to root module")

    def remap_input(self, x: torch.fx.Node) -> torch.fx.Node:
        """Return the node of the root's graph that `copy_node` created for a node `x`."""
        if x.graph is not self.flat_graph:
            raise AssertionError("expected x.graph to be flat_graph, got different graph")
        if x in self.node_map:
            return self.node_map[x]
        raise RuntimeError(f"Could not run remap_input() on op type: {x.op} for node {x}")

    def copy_node(self, node: torch.fx.Node) -> None:
        """Copy a node of the flat graph into the root's graph."""
        self.print("copying", node.format_node())
        self.node_map[node] = self.graph.node_copy(node, self.remap_input)
        self.seen_nodes[node.name] = node

    def copy_sym_call_function(self, x: torch.fx.Node) -> torch.fx.Node:
        """Add a second computation of the flat graph's node `x` to the root's graph."""
        args, kwargs = torch.fx.node.map_arg((x.args, x.kwargs), self.remap_input)
        node = self.graph.call_function(x.target, args, kwargs)
        node.meta = dict(x.meta)
        self.node_map[x] = node
        return node

    def uplift_common_custom_metadata(self) -> None:
        """Do nothing: torch moves meta to the node that calls a module; no node calls the root."""

    def finalize_outputs(self) -> None:
        """Raise UnsupportedError, because `run_outer` does all steps at once."""
        raise self._only_run_outer("finalize_outputs")

    def run_from(self, node_idx: int) -> int:
        """Raise UnsupportedError, because `run_outer` does all steps at once."""
        raise self._only_run_outer("run_from")

    @staticmethod
    def _only_run_outer(name: str) -> UnsupportedError:
        return UnsupportedError(
            f"_ModuleFrame.{name} is not supported: run_outer() unflattens the graph in one step"
        )

    def print(self, *args: Any, **kwargs: Any) -> None:
        """Print the arguments if `verbose` is set."""
        if self.verbose:
            print(*args, **kwargs)


def _outline_submodules(
    orig_graph: torch.fx.Graph, root_module: Any
) -> tuple[dict[Any, list[_SubmoduleEntry]], dict[str, set[str]]]:
    """Divide a flat graph among `root_module` and its submodules; return calls and attributes.

    Stands in for `torch.export.unflatten._outline_submodules`.
    """
    seen_modules: dict[Any, list[_SubmoduleEntry]] = defaultdict(list)
    seen_attrs: dict[str, set[str]] = defaultdict(set)
    calls = {e.fqn: e.signature for e in root_module.module_call_graph if e.signature}
    _ModuleFrame(
        orig_graph,
        tuple(orig_graph.nodes),
        {},
        seen_modules,
        seen_attrs,
        {},
        None,
        [("", None, 0)],
        "",
        calls,
        module=root_module,
    ).run_outer()
    return seen_modules, seen_attrs

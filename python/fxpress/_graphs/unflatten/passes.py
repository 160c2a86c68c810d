"""Define torch's steps of unflattening as separate functions, for code that calls single steps.

`unflatten` itself plans all steps before it creates modules.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
import torch.fx
from torch.export.exported_program import ExportGraphSignature

from fxpress._graphs.unflatten import aliases, attributes, source
from fxpress._graphs.unflatten.frames import _SubmoduleEntry
from fxpress._graphs.unflatten.modules import InterpreterModule, log_cuts
from fxpress._torch.fx import is_opaque_value, pytree


def _inplace_buffer_and_input_mutations(
    graph: torch.fx.Graph, graph_signature: ExportGraphSignature
) -> None:
    """Replace outputs that are new values of buffers or inputs by `copy_` nodes in the graph.

    Stands in for `torch.export.unflatten._inplace_buffer_and_input_mutations`. Each write comes
    after the computation of the new value and the last read of the old value or of its views. If
    the new value is an input, the write is at the end of the graph. Parameters are written through
    `detach`. If another write may change a new value, the value is cloned before any write.
    """
    output = next(iter(reversed(graph.nodes)))
    if output.op != "output" or len(output.args) != 1:
        raise AssertionError(
            f"expected output node with op='output' and 1 arg, got op={output.op!r} with "
            f"{len(output.args)} args"
        )
    inputs = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    order = {node: i for i, node in enumerate(graph.nodes)}
    mutated = source.mutations(graph_signature)
    written = [inputs[name] for _, name in mutated]
    read = aliases.readers(written)
    for i, (is_parameter, name) in enumerate(mutated):
        into, value = inputs[name], output.args[0][i]
        reads = [user for user in aliases.readers([into]) if user in order and user is not output]
        last_read = max(reads, key=order.__getitem__, default=value)
        if value.op == "placeholder":
            if value in written:
                value = _snapshot(graph, value)
            with graph.inserting_before(output):
                _write(graph, into, value, is_parameter=is_parameter)
            continue
        at = max(value, last_read, key=lambda node: order.get(node, -1))
        if value in read and aliases.may_alias(value):
            copy = _snapshot(graph, value)
            at = copy if at is value else at
            value = copy
        with graph.inserting_after(at):
            write = _write(graph, into, value, is_parameter=is_parameter)
        if at is value and not is_parameter:
            value.replace_all_uses_with(write, lambda user, write=write: user is not write)
    output.args = (tuple(output.args[0][len(mutated) :]),)


def _snapshot(graph: torch.fx.Graph, value: torch.fx.Node) -> torch.fx.Node:
    """Add a clone of an input or of a view before any write to its memory; return the clone."""
    is_input = value.op == "placeholder"
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first) if is_input else graph.inserting_after(value):
        copy = graph.call_function(torch.ops.aten.clone.default, (value,))
    copy.meta = dict(value.meta)
    return copy


def _write(
    graph: torch.fx.Graph, into: torch.fx.Node, value: torch.fx.Node, *, is_parameter: bool
) -> torch.fx.Node:
    """Add a node `into.copy_(value)` and return it; a parameter is detached from autograd first."""
    write = graph.call_function(torch.ops.aten.copy_.default, (into, value))
    write.meta = dict(value.meta)
    if is_parameter:
        with graph.inserting_before(write):
            detached = graph.call_function(torch.ops.aten.detach.default, (into,))
        detached.meta = dict(value.meta)
        write.update_arg(0, detached)
    return write


def _root_module_type(graph: torch.fx.Graph) -> str | None:
    """Return the class of the root module, which is recorded in the `nn_module_stack` of nodes."""
    for node in graph.nodes:
        for path, kind in node.meta.get("nn_module_stack", {}).values():
            if not path:
                return kind  # type: ignore[no-any-return]
    return None


def _fix_nn_module_stacks(graph: torch.fx.Graph) -> None:
    """Cut each `nn_module_stack` before the first module that is not inside the previous module.

    Stands in for `torch.export.unflatten._fix_nn_module_stacks`. Unlike torch, it compares parts
    between dots: "ab" is not inside "a".
    """
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack")
        if not stack:
            continue
        paths = [path.split("@")[0] for path, _ in stack.values()]
        depth = 1
        while (
            depth < len(paths)
            and paths[depth] != paths[depth - 1]
            and (paths[depth - 1] == "" or paths[depth].startswith(paths[depth - 1] + "."))
        ):
            depth += 1
        if depth < len(paths):
            log_cuts([(node, paths, len(paths) - depth)])
            node.meta["nn_module_stack"] = dict(list(stack.items())[:depth])


def _dump(graph: torch.fx.Graph) -> list[str]:
    numbers = {node: f"%{i}" for i, node in enumerate(graph.nodes)}

    def text(argument: Any) -> str:
        return numbers[argument] if isinstance(argument, torch.fx.Node) else str(argument)

    lines = []
    for node in graph.nodes:
        target = node.target if node.op in ("call_function", "get_attr") else ""
        arguments = pytree.tree_map(text, (tuple(node.args), dict(node.kwargs)))
        lines.append(f"{node.op}[{target}]{arguments}")
    return lines


def _check_graph_equivalence(x: torch.nn.Module, y: torch.nn.Module) -> bool:
    """Return whether two modules' graphs are equal except for node names and called modules."""
    for name, module in (("x", x), ("y", y)):
        if not isinstance(module.graph, torch.fx.Graph):
            raise AssertionError(
                f"expected {name}.graph to be torch.fx.Graph, got {type(module.graph)}"
            )
    return _dump(x.graph) == _dump(y.graph)


def _copy_graph_attrs(
    gm: torch.fx.GraphModule, root_module: torch.nn.Module, seen_attrs: dict[str, set[str]]
) -> None:
    """Copy attributes of `gm` to modules: `seen_attrs` is {path of a module: attribute names}."""
    for path, names in seen_attrs.items():
        module = root_module.get_submodule(path)
        for name in names:
            setattr(module, name, getattr(gm, name))


def _deduplicate_modules(partitions: Iterable[list[_SubmoduleEntry]]) -> dict[str, str]:
    """Merge the modules of several calls if their graphs are equal.

    Stands in for `torch.export.unflatten._deduplicate_modules`. Returns a dict of removed call
    names -> the call names that replace them.
    """
    redirected: dict[str, str] = {}
    for entries in partitions:
        for i, entry in enumerate(entries):
            call_name = attributes._call_name(entry.fqn, entry.call_idx)
            target = attributes._compute_accessor(entry.parent_fqn, call_name)
            replaced = False
            for seen in entries[:i]:
                if replaced and seen.fqn != entry.fqn:
                    continue
                if not _check_graph_equivalence(seen.module, entry.module):
                    continue
                if seen.fqn == entry.fqn:
                    prefix, _, name = target.rpartition(".")
                    entry.parent_module.get_submodule(prefix)._modules.pop(name)
                    seen_name = attributes._call_name(seen.fqn, seen.call_idx)
                    entry.parent_call_module.target = attributes._compute_accessor(
                        entry.parent_fqn, seen_name
                    )
                    redirected[call_name] = seen_name
                    break
                replaced = True
                entry.parent_module.set_submodule(target, seen.module)
    return redirected


def _reorder_submodules(
    parent: torch.nn.Module, fqn_order: dict[str, int], prefix: str = ""
) -> None:
    """Sort children by `fqn_order` at all levels; add an empty module for each missing name."""
    if prefix == "":
        for fqn in list(fqn_order)[1:]:
            if attributes._get_submodule(parent, fqn) is None:
                attributes._add_submodule(parent, fqn, torch.nn.Module())
    pending = [(parent, prefix)]
    while pending:
        module, path = pending.pop()
        children = []
        for name, child in list(module._modules.items()):
            if child is None:
                continue
            fqn = path + name
            base = fqn.split("@")[0]
            pending.append((child, base + "."))
            delattr(module, name)
            children.append((fqn_order.get(fqn, fqn_order.get(base, len(fqn_order))), name, child))
        for _, name, child in sorted(children, key=operator.itemgetter(0)):
            module.register_module(name, child)


def _sink_params(
    module: torch.nn.Module,
    inputs_to_state: dict[str, list[str]],
    scope: list[str],
    module_id_to_inputs_removed: dict[int, set[str]] | None = None,
) -> dict[int, set[str]]:
    """Replace placeholders for state by get_attr nodes, in the graph of the module with the state.

    Stands in for `torch.export.unflatten._sink_params`.

    Args:
        module: a module with a `graph`, or with submodules that have one.
        inputs_to_state: placeholder -> names of its state; the first name below `module` is used.
        scope: the parts of the dotted name of `module`.
        module_id_to_inputs_removed: id of a finished module -> the placeholders removed from it.

    Returns:
        A dict of module ids -> the removed placeholders.
    """
    removed = (
        defaultdict(set) if module_id_to_inputs_removed is None else module_id_to_inputs_removed
    )
    if id(module) in removed:
        return {id(module): removed[id(module)]}
    lost: set[str] | None = None  # names of placeholders removed from `module` itself
    visits = [(module, scope, False)]
    while visits:
        current, path, children_done = visits.pop()
        if children_done:
            graph = getattr(current, "graph", None)
            if graph is None or len(graph.nodes) == 0:
                continue
            if not isinstance(graph, torch.fx.Graph):
                raise AssertionError(f"expected graph to be torch.fx.Graph, got {type(graph)}")
            gone = _sink_into(current, graph, inputs_to_state, path, removed)
            if current is module:
                lost = gone
            else:
                removed[id(current)] = gone
            continue
        if id(current) in removed:
            continue
        visits.append((current, path, True))
        for name, child in reversed(current._modules.items()):
            if child is not None:
                visits.append((child, [*path, name], False))
    return removed if lost is None else {id(module): lost}


def _sink_into(
    module: Any,
    graph: torch.fx.Graph,
    inputs_to_state: dict[str, list[str]],
    scope: list[str],
    removed: dict[int, set[str]],
) -> set[str]:
    """Do `_sink_params` for a module after its children; return its removed placeholders."""
    for node in graph.find_nodes(op="call_module"):
        gone = removed.get(id(attributes._get_submodule(module, node.target)))
        if gone:
            node.args = tuple(a for a in node.args if getattr(a, "name", None) not in gone)
    path = [part.split("@")[0] for part in scope]
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    lost: set[str] = set()
    for node in inputs:
        names = (name.split(".") for name in inputs_to_state.get(node.name, ()))
        found = next((name for name in names if name[: len(path)] == path), None)
        if found is None:
            continue
        if node.users:
            target = ".".join(found[len(path) :])
            value = attributes._get_submodule(module, target)
            if not isinstance(value, (torch.Tensor, torch.ScriptObject)) and not is_opaque_value(
                value
            ):
                raise AssertionError(
                    "expected state_attr to be torch.Tensor or torch.ScriptObject, got "
                    f"{type(value)} for {'.'.join(found)!r}"
                )
            with graph.inserting_after(inputs[-1]):
                state = graph.create_node("get_attr", target)
            node.replace_all_uses_with(state, propagate_meta=True)
        graph.erase_node(node)
        lost.add(node.name)
    if isinstance(module, InterpreterModule):
        module.finalize()
    return lost

"""Merge state tensors that share a storage, if a program writes to the storage.

torch cannot trace such inputs. So only one input, the base, remains: one of the tensors, or a new
buffer. Views of the base replace the others, which the decomposed program has as unused inputs.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Graph, GraphModule, Node

from fxpress import _native
from fxpress._base.errors import UnsupportedError
from fxpress._files.tensors.copies import sharing
from fxpress._graphs.unflatten.aliases import may_alias
from fxpress._graphs.unflatten.source import copy_calls, copy_signature
from fxpress._torch import fx as torch_fx
from fxpress._torch import serde as compat

_aten = torch.ops.aten
_META = ("nn_module_stack", "stack_trace", "torch_fn", "source_fn_stack", "custom")
_ORDER = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


class _State(NamedTuple):
    """A parameter, buffer or constant that the graph has as an input."""

    node: Node
    spec: InputSpec
    value: torch.Tensor

    @property
    def geometry(self) -> tuple[Any, ...]:
        """The dtype, shape, strides and offset, which identify a tensor within one storage."""
        return self.value.dtype, self.value.shape, self.value.stride(), self.value.storage_offset()

    @property
    def span(self) -> tuple[int, int]:
        """The range of elements of the storage that the tensor uses."""
        begin = self.value.storage_offset()
        steps = zip(self.value.shape, self.value.stride(), strict=True)
        return begin, begin + 1 + sum((size - 1) * step for size, step in steps)


def without_views(program: ExportedProgram) -> ExportedProgram:
    """Return a program in which one input replaces state tensors that share a written storage.

    Returns `program` if no state tensors share a storage that the program writes to.

    Raises:
        UnsupportedError: the tensors have several dtypes or are parts of a parameter.
    """
    signature = program.graph_signature
    replaced = {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}
    if not replaced and not any(map(_is_mutable, _native.list_nodes(program.graph))):
        return program
    values = {**program.constants, **program.state_dict}
    placeholders = program.graph.find_nodes(op="placeholder")
    held = [
        _State(node, spec, values[spec.target])
        for node, spec in zip(placeholders, signature.input_specs, strict=True)
        if spec.kind in _ORDER and spec.target in values
    ]
    bases: dict[Node, tuple[_State, _State]] = {}  # placeholder -> (its base, its own state)
    for positions in sharing([each.value for each in held]):
        for group in _overlapping([held[i] for i in positions]):
            written = [each for each in group if each.spec.target in replaced]
            if not written and not _is_written(program.graph, {each.node for each in group}):
                continue
            base = _base_of(group) or _whole_storage(group, program, len(bases))
            if all(each is base for each in written):
                bases.update((each.node, (base, each)) for each in group if each is not base)
    return _rewrite(program, bases) if bases else program


def with_views(made: ExportedProgram, program: ExportedProgram) -> ExportedProgram:
    """Add to the decomposed program `made` the inputs that `without_views` removed; return it."""
    known = {spec.target for spec in made.graph_signature.input_specs}
    placeholders = program.graph.find_nodes(op="placeholder")
    specs = program.graph_signature.input_specs
    rank = {kind: number for number, kind in enumerate(_ORDER)}
    for node, spec in zip(placeholders, specs, strict=True):
        if spec.kind not in rank or spec.target in known:
            continue
        found = made.graph_signature.input_specs
        at = sum(rank.get(other.kind, len(rank)) <= rank[spec.kind] for other in found)
        before = made.graph.find_nodes(op="placeholder")[at:] or [made.graph.output_node()]
        with made.graph.inserting_before(before[0]):
            added = made.graph.placeholder(node.name)
        added.meta = dict(node.meta)
        argument = TensorArgument(name=added.name)
        found.insert(at, dataclasses.replace(spec, arg=argument))
    for new, old in ((made.state_dict, program.state_dict), (made.constants, program.constants)):
        others = {name: new[name] for name in new if name not in old}
        ordered = {**old, **others}
        new.clear()
        new.update(ordered)
    return made


def _is_mutable(node: Node) -> bool:
    return isinstance(node.target, torch_fx.OpOverload) and bool(node.target._schema.is_mutable)


def _is_written(graph: Graph, sources: set[Node]) -> bool:
    """Return whether an operator in `graph` writes to a value in `sources` or to a view of one."""
    views = set(sources)
    for node in _native.list_nodes(graph):
        if node.op != "call_function" or views.isdisjoint(node.all_input_nodes):
            continue
        if _is_mutable(node):
            arguments = node.target._schema.arguments
            given = {a.name: v for a, v in zip(arguments, node.args, strict=False)} | node.kwargs
            for argument in arguments:
                written = argument.alias_info is not None and argument.alias_info.is_write
                reached: list[Node] = []
                torch.fx.node.map_arg(given.get(argument.name), reached.append)
                if written and not views.isdisjoint(reached):
                    return True
        if may_alias(node):
            views.add(node)
    return False


def _overlapping(held: list[_State]) -> Iterator[list[_State]]:
    """Yield groups of two or more tensors that may share elements; `held` has one storage."""
    group: list[_State] = []
    end = -1
    for each in sorted((e for e in held if e.value.numel()), key=lambda e: e.span):
        if each.span[0] >= end:
            if len(group) > 1:
                yield group
            group = []
        group.append(each)
        end = max(end, each.span[1])
    if len(group) > 1:
        yield group


def _base_of(group: list[_State]) -> _State | None:
    """Return the tensor of which all other tensors of a group can be views, or None."""
    begin = min(each.span[0] for each in group)
    end = max(each.span[1] for each in group)
    for kind in _ORDER:
        for each in group:
            is_whole = each.value.is_contiguous() and each.span == (begin, end)
            others = (other for other in group if other.geometry != each.geometry)
            if each.spec.kind is kind and all(is_whole and _is_part(each, o) for o in others):
                return each
    return None


def _whole_storage(group: list[_State], program: ExportedProgram, number: int) -> _State:
    """Return a new buffer that covers the entire storage of a group."""
    value = group[0].value
    kinds = {(type(each.value), each.value.dtype) for each in group}
    if kinds != {(torch.Tensor, value.dtype)}:
        names = ", ".join(repr(each.spec.target) for each in group)
        raise UnsupportedError(
            f"the program writes to {names}, which are views of one storage. They have several "
            "dtypes or are parts of a parameter: register a tensor with all elements as a buffer"
        )
    nodes = _native.list_nodes(program.graph)
    taken = {*program.state_dict, *program.constants, *(node.name for node in nodes)}
    numbered = (f"shared_storage_{i}" for i in itertools.count(number))
    name = next(n for n in numbered if n not in taken and f"b_{n}" not in taken)
    whole = value.detach().as_strided([value.untyped_storage().nbytes() // value.itemsize], [1], 0)
    node = Graph().placeholder(f"b_{name}")
    node.meta["val"] = group[0].node.meta["val"].new_empty(whole.shape)
    argument = TensorArgument(name=node.name)
    return _State(node, InputSpec(InputKind.BUFFER, argument, name, persistent=False), whole)


def _is_part(base: _State, other: _State) -> bool:
    if other.value.dtype != base.value.dtype:
        return False
    return bool(other.value.is_contiguous()) or base.value.storage_offset() == 0


class _Writer:
    """Copies a graph; views of bases replace the placeholders that are keys of `bases`."""

    def __init__(self, bases: dict[Node, tuple[_State, _State]]) -> None:
        self.graph = Graph()
        self.made: dict[Node, Node] = {}
        self._bases = bases

    def copy(self, node: Node) -> None:
        """Copy a node. Each node that uses a view gets a separate view."""
        if node in self._bases:
            return
        like = node.prev if node.op == "output" else node
        made = self.graph.node_copy(node, lambda each: self._value(each, like))
        if node.op != "output":
            made.name = node.name
        self.made[node] = made

    def _value(self, node: Node, like: Node) -> Node:
        if node not in self._bases:
            return self.made[node]
        base, other = self._bases[node]
        source = self.made[base.node]
        if other.geometry == base.geometry:
            return source
        value = other.value
        sizes, strides, offset = list(value.shape), list(value.stride()), value.storage_offset()
        if not value.is_contiguous():
            return self._call(like, _aten.as_strided.default, source, sizes, strides, offset)
        begin = offset - base.value.storage_offset()
        flat = self._call(like, _aten.view.default, source, [-1])
        part = self._call(like, _aten.slice.Tensor, flat, 0, begin, begin + value.numel())
        return self._call(like, _aten.view.default, part, sizes)

    def _call(self, like: Node, target: Any, source: Node, *args: Any) -> Node:
        made = self.graph.call_function(target, (source, *args))
        made.meta = {key: like.meta[key] for key in _META if key in like.meta}
        made.meta["val"] = target(source.meta["val"], *args)
        return made


def _rewrite(program: ExportedProgram, bases: dict[Node, tuple[_State, _State]]) -> ExportedProgram:
    """Return a copy of a program in which views replace the placeholders that `bases` maps."""
    new = {base.node: base for base, _ in bases.values() if base.node.graph is not program.graph}
    writer = _Writer(bases)
    for node in (*new, *_native.list_nodes(program.graph)):
        writer.copy(node)
    old = program.graph_signature
    gone = {node.name for node in bases}
    inputs = [spec for spec in old.input_specs if getattr(spec.arg, "name", None) not in gone]
    inputs = [*(base.spec for base in new.values()), *inputs]
    signature = copy_signature(old, inputs, old.output_specs)
    written = {base.node.name for base, _ in bases.values()}
    for spec in signature.input_specs:
        if spec.kind is InputKind.CONSTANT_TENSOR and spec.arg.name in written:
            spec.kind, spec.persistent = InputKind.BUFFER, False
    calls = copy_calls(program.module_call_graph)
    results = writer.graph.output_node().args[0]
    returned = [*(spec.arg for spec in signature.output_specs), *calls[0].signature.outputs]
    former = program.graph.output_node().args[0]
    renamed = dict(zip(map(str, former), map(str, results), strict=True))
    for argument in returned:
        if isinstance(argument, TensorArgument):
            argument.name = renamed.get(argument.name, argument.name)
    constants = {**program.constants, **{base.spec.target: base.value for base in new.values()}}
    targets = {other.spec.target for _, other in bases.values()}
    root = GraphModule(program.graph_module, writer.graph)
    root.meta.update(program.graph_module.meta)
    return compat.replaced(
        program,
        root=root,
        graph_signature=signature,
        state_dict={n: v for n, v in program.state_dict.items() if n not in targets},
        module_call_graph=calls,
        constants={n: v for n, v in constants.items() if n not in targets},
    )

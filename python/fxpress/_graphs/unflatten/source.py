"""Collect the facts about an exported program that the native pass needs; define `_IVals`."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict

import torch
import torch.fx
from torch.export import ExportedProgram
from torch.export.exported_program import (
    ConstantArgument,
    ExportGraphSignature,
    ModuleCallEntry,
    ModuleCallSignature,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.export.graph_signature import OutputKind

from fxpress import _native
from fxpress._base.observing.progress import Progress
from fxpress._files.tensors.copies import copy_in_parts, copy_sharing, sharing
from fxpress._graphs.unflatten import aliases
from fxpress._graphs.unflatten.attributes import check_constant
from fxpress._torch import aten
from fxpress._torch import export as torch_export
from fxpress._torch import fx as torch_fx
from fxpress._torch.unlift import MUTATIONS


def collect(
    program: ExportedProgram,
    *,
    share_state: bool,
    device: torch.device | None,
    progress: Progress = False,
) -> _native.ProgramState:
    """Return parameters, buffers and constants for the new modules: copies unless `share_state`.

    Values with the same data but different dtypes stay separate, unlike in torch.
    """
    state_dict, constants = program.state_dict, program.constants
    values = [*state_dict.values(), *constants.values()]
    state = _native.ProgramState(
        names=[*state_dict, *constants],
        values=values,
        constants_begin=len(state_dict),
        groups=aten.same_data(values),
        specs=program.graph_signature.input_specs,
        check_constant=lambda name, value: check_constant(value, f"constant {name!r}"),
        copies_unused=device is not None or _has_views(values),
    )

    def copies(values: list[Any], are_parameters: list[bool]) -> list[Any]:
        return _copies(values, are_parameters, share_state, device)

    state.fill(copy_in_parts(copies, state.wanted(), progress, "copying state"))
    return state


def _has_views(values: list[Any]) -> bool:
    """Return whether two different tensors share a storage."""
    return any(len({id(values[i]) for i in positions}) > 1 for positions in sharing(values))


def _copies(
    values: list[Any], are_parameters: list[bool], share_state: bool, device: torch.device | None
) -> list[Any]:
    groups = [] if share_state and device is None else sharing(values)
    if not groups:
        return _copies_alone(values, are_parameters, share_state, device)
    shared = list(itertools.chain.from_iterable(groups))
    made = copy_sharing([values[i] for i in shared], device, copy=not share_state)
    copies = {
        i: _as_parameter(copied, values[i], are_parameters[i])
        for i, copied in zip(shared, made, strict=True)
    }
    alone = [i for i in range(len(values)) if i not in copies]
    columns = [values[i] for i in alone], [are_parameters[i] for i in alone]
    copies.update(zip(alone, _copies_alone(*columns, share_state, device), strict=True))
    return [copies[i] for i in range(len(values))]


def _copies_alone(
    values: list[Any], are_parameters: list[bool], share_state: bool, device: torch.device | None
) -> list[Any]:
    """Return copies of values, each in its own storage; with `share_state`, the values."""
    if device is None and not share_state:
        copies = aten.clone_separately(values, are_parameters)
        return [
            _copy(*original) if copied is None else copied
            for copied, *original in zip(copies, values, are_parameters, strict=True)
        ]
    copies = values
    if device is not None:
        copies = [
            value.to(device, copy=not share_state) if isinstance(value, torch.Tensor) else value
            for value in values
        ]
    return list(map(_as_parameter, copies, values, are_parameters))


def _copy(value: Any, is_parameter: bool) -> Any:
    copied = value.clone() if isinstance(value, torch.Tensor) else value
    return _as_parameter(copied, value, is_parameter)


def _as_parameter(copied: Any, value: Any, wanted: bool) -> Any:
    if not wanted or isinstance(copied, torch.nn.Parameter):
        return copied
    return torch.nn.Parameter(copied, requires_grad=value.requires_grad)


Leaf = tuple[str, tuple[Any] | None]  # (name of a value, None) or ("", (constant,))
Signature = tuple[str, list[Leaf], list[Leaf], int, list[str], Any, Any]


class Source(TypedDict):
    """The argument of `_native.unflatten` and `_native.outline_submodules`."""

    graph: torch.fx.Graph  # the flat graph
    owner: torch.nn.Module  # has the attributes that get_attr nodes of `graph` read
    may_alias: Callable[[torch.fx.Node], bool]  # whether a result may be an argument or its view
    parts: frozenset[Any]  # operators that return one inner tensor of a tensor subclass
    mutations: list[tuple[bool, str]]  # from `mutations()`
    signatures: list[Signature]  # from `signatures()`
    with_signature: list[str]  # names of the calls that get dispatchers if they are repeated
    state: _native.ProgramState | None
    paths: list[str]  # names of the original modules, in order
    interpreter: type[torch.nn.Module]  # InterpreterModule
    dispatcher: type[torch.nn.Module]  # InterpreterModuleDispatcher
    run_with_interpreter: bool
    drop_dead_code: bool  # leave out nodes that have neither effects nor users


_NAMED = (TensorArgument, SymIntArgument, SymBoolArgument, SymFloatArgument)


def _input_leaf(argument: object, call_name: str) -> Leaf:
    if isinstance(argument, ConstantArgument):
        return "", (argument.value,)
    if not isinstance(argument, _NAMED):
        raise AssertionError(
            f"expected inputs of {call_name!r} to be TensorArgument, SymIntArgument, "
            f"SymBoolArgument, or SymFloatArgument, got {type(argument)}"
        )
    return argument.name, None


def _output_leaf(argument: object, call_name: str) -> Leaf:
    if isinstance(argument, ConstantArgument):
        return "", (argument.value,)
    if not isinstance(argument, _NAMED):
        raise RuntimeError(f"Unsupported data type for output node: {argument} of {call_name!r}")
    return argument.name, None


def _expect(condition: bool, call_name: str, what: str, found: object) -> None:
    if not condition:
        raise AssertionError(f"expected {what} of the signature of {call_name!r}, got {found}")


def signatures(calls: Mapping[str, ModuleCallSignature]) -> list[Signature]:
    """Check preserved module call signatures (by call name), and convert them for native code."""
    result: list[Signature] = []
    for name, signature in calls.items():
        if name == "":
            result.append((name, [], [], 0, [], None, None))
            continue
        spec = signature.in_spec
        _expect(spec.num_children == 2, name, "in_spec to have 2 children", spec.num_children)
        _expect(spec.type is tuple, name, "in_spec.type to be tuple", spec.type)
        args, kwargs = spec.children()
        _expect(args.type is tuple, name, "args_spec.type to be tuple", args.type)
        _expect(kwargs.type is dict, name, "kwargs_spec.type to be dict", kwargs.type)
        inputs = [_input_leaf(argument, name) for argument in signature.inputs]
        outputs = [_output_leaf(argument, name) for argument in signature.outputs]
        keywords = list(kwargs.context)
        result.append(
            (name, inputs, outputs, args.num_children, keywords, spec, signature.out_spec)
        )
    return result


def mutations(signature: ExportGraphSignature) -> list[tuple[bool, str]]:
    """Return (is_parameter, placeholder) for each output that is the new value of a placeholder."""
    if not any(spec.kind in MUTATIONS for spec in signature.output_specs):
        return []
    buffers = {target: name for name, target in signature.inputs_to_buffers.items()}
    parameters = {target: name for name, target in signature.inputs_to_parameters.items()}
    result = []
    for spec in signature.output_specs:
        if spec.kind not in MUTATIONS:
            continue
        assert spec.target is not None
        if spec.kind == OutputKind.BUFFER_MUTATION:
            result.append((False, buffers[spec.target]))
        elif spec.kind == OutputKind.PARAMETER_MUTATION:
            result.append((True, parameters[spec.target]))
        else:
            result.append((False, spec.target))
    return result


@functools.cache
def _is_copied(kind: type) -> bool:
    return dataclasses.is_dataclass(kind) and not issubclass(kind, torch_fx.TreeSpec)


def _copied(value: Any) -> Any:
    """Copy a dataclass of a signature, and all dataclasses in it except tree specs."""
    kind = type(value)
    copy = object.__new__(kind)
    fields = value.__dict__.copy()
    for name, field in fields.items():
        if _is_copied(type(field)):  # type: ignore[arg-type]
            fields[name] = _copied(field)
    copy.__dict__.update(fields)
    return copy


def copy_signature(
    signature: ExportGraphSignature, inputs: list[Any], outputs: list[Any]
) -> ExportGraphSignature:
    """Return a copy of a signature with copies of the specs `inputs` and `outputs`, for edits."""
    copy = _copied(signature)
    copy.input_specs = [_copied(spec) for spec in inputs]
    copy.output_specs = [_copied(spec) for spec in outputs]
    return copy


def copy_calls(calls: Iterable[Any]) -> list[Any]:
    """Copy a module call graph, so that it can be edited; tree specs are shared."""
    result = []
    for entry in calls:
        if entry.signature is None and type(entry) is ModuleCallEntry:
            copy = ModuleCallEntry(entry.fqn)  # the usual case; this is faster than _copied
        else:
            copy = _copied(entry)
        if copy.signature is not None:
            copy.signature.inputs = [_copied(argument) for argument in entry.signature.inputs]
            copy.signature.outputs = [_copied(argument) for argument in entry.signature.outputs]
        result.append(copy)
    return result


def of_program(
    program: ExportedProgram,
    calls: Sequence[Any],
    state: _native.ProgramState,
    classes: tuple[type[torch.nn.Module], type[torch.nn.Module]],
    *,
    run_with_interpreter: bool,
    drop_dead_code: bool,
) -> Source:
    """Return the argument of `_native.unflatten`; `calls` is a copy of `module_call_graph`."""
    preserved = {entry.fqn: entry.signature for entry in calls if entry.signature is not None}
    return {
        "graph": program.graph,
        "owner": program.graph_module,
        "may_alias": aliases.may_alias,
        "parts": torch_export.INNER_TENSOR_TARGETS,
        "mutations": mutations(program.graph_signature),
        "signatures": signatures(preserved),
        "with_signature": list(preserved),
        "state": state,
        "paths": [entry.fqn for entry in calls],
        "interpreter": classes[0],
        "dispatcher": classes[1],
        "run_with_interpreter": run_with_interpreter,
        "drop_dead_code": drop_dead_code,
    }


class _IVals:
    """Records which intermediate values of mutated tensors were read: node names by module.

    Stands in for `torch.export.unflatten._IVals`, for its callers. `unflatten` does not use it.
    """

    def __init__(self) -> None:
        self.node_names_by_fqn: defaultdict[str, set[str]] = defaultdict(set)

    def _is_mutable(self, target: object) -> bool:
        return isinstance(target, torch_fx.OpOverload) and bool(target._schema.is_mutable)

    def read(self, mf: Any, node: torch.fx.Node) -> Any:
        """Record a read of an intermediate value; return the mutated tensor's node in `mf`."""
        if node.op != "call_function":
            raise AssertionError(f"expected node.op to be 'call_function', got {node.op!r}")
        if not self._is_mutable(node.target):
            fqn, _ = next(reversed(node.meta["nn_module_stack"].values()))
            self.node_names_by_fqn[fqn].add(node.name)
        return mf.remap_input(node.args[0])

    def update(self, partitions: Any) -> None:
        """After each intermediate value that was read, add a `copy_` into the mutated tensor."""
        for entry in (entry for entries in partitions for entry in entries):
            graph = entry.module.graph
            names = self.node_names_by_fqn[entry.fqn]
            for node in [node for node in graph.nodes if node.name in names]:
                with graph.inserting_after(node):
                    write = graph.call_function(torch.ops.aten.copy_.default, (node.args[0], node))
                write.meta = dict(node.meta)

"""Import torch's names for exported programs and unflattened modules."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.fx
from torch._export import utils as export_utils
from torch._higher_order_ops.effects import with_effects
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.export import ExportedProgram, _tree_utils
from torch.export._remove_effect_tokens_pass import _remove_effect_tokens
from torch.export.graph_signature import InputKind
from torch.fx import _graph_pickler
from torch.fx import graph_module as fx_graph_module
from torch.fx.experimental.symbolic_shapes import ShapeEnv as ShapeEnv

from fxpress._base.errors import UnsupportedError
from fxpress._torch.fx import GRAPH_SLOT


def skip_frame(function: Callable[..., Any]) -> None:
    """Keep Dynamo from compiling a call of a function, unless the caller is already traced."""
    frames = torch._C._dynamo.eval_frame
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, default))


# Imported by its path, because the attribute `unflatten` of `torch.export` is a function.
_unflatten = importlib.import_module("torch.export.unflatten")
InterpreterModule: Any = _unflatten.InterpreterModule
InterpreterModuleDispatcher: Any = _unflatten.InterpreterModuleDispatcher
UnflattenedModule: Any = _unflatten.UnflattenedModule
FlatArgsAdapter: Any = _unflatten.FlatArgsAdapter
AttrKind: Any = _unflatten._AttrKind
TensorID: Any = _unflatten._TensorID
reorder_kwargs: Callable[[dict[str, Any], Any], dict[str, Any]] = _tree_utils.reorder_kwargs
check_input_constraints: Callable[..., None] = export_utils._check_input_constraints_for_graph


def print_readable(module: Any, title: str, *flags: bool) -> str:
    """Return the code of a module and its submodules, by torch.fx's `_print_readable`."""
    return cast(str, fx_graph_module._print_readable(module, title, *flags))


def without_effect_tokens(program: ExportedProgram) -> ExportedProgram:
    """Return the program itself if it has no effect tokens, else a copy without the tokens."""
    # Compare with `is`: a set of kinds would call Python code to hash a member of an Enum.
    token = InputKind.TOKEN
    specs = program.graph_signature.input_specs
    tokens = any(spec.kind is token for spec in specs) or any(
        isinstance(module, torch.fx.GraphModule)
        and module.graph.find_nodes(op="call_function", target=with_effects)
        for module in program.graph_module.modules()
    )
    if not tokens:
        return program
    return _cleaned_copy(program)


_IN_CONSTANTS = (InputKind.CONSTANT_TENSOR, InputKind.CUSTOM_OBJ)


def with_distinct_names(program: ExportedProgram) -> ExportedProgram:
    """Return the program, or a copy in which no constant has the name of a parameter or module."""
    signature = program.graph_signature
    constants = [spec.target for spec in signature.input_specs if spec.kind in _IN_CONSTANTS]
    if not constants:
        return program
    transient = signature.non_persistent_buffers
    taken = {spec.target for spec in signature.input_specs if spec.kind not in _IN_CONSTANTS}
    taken.update(entry.fqn for entry in program.module_call_graph)
    for name in (*constants, *taken):
        while name and (name := name.rpartition(".")[0]):
            taken.add(name)
    new_names: dict[str, str] = {}
    for name in constants:
        if name in transient or name in new_names:
            raise UnsupportedError(
                f"two inputs are named {name!r}, and program.constants has one value for both"
                "; rename the model's attribute and export it again"
            )
        stem = re.sub(r"_[0-9]+$", "", name)
        free = (f"{stem}_{i}" for i in itertools.count())
        unused = (n for n in free if n not in taken and n not in program.constants)
        new_names[name] = next(unused) if name in taken else name
        taken.add(new_names[name])
    if all(name == new for name, new in new_names.items()):
        return program
    renamed = copy.copy(program)
    renamed._constants = {new_names.get(n, n): value for n, value in program.constants.items()}
    renamed._graph_signature = copy.copy(signature)
    renamed._graph_signature.input_specs = [
        dataclasses.replace(spec, target=new_names[spec.target])
        if spec.kind in _IN_CONSTANTS
        else spec
        for spec in signature.input_specs
    ]
    return renamed


def without_tokens_and_dead_bodies(program: ExportedProgram) -> ExportedProgram:
    """Return the program, or a copy without effect tokens and dead nodes of nested GraphModules."""
    cleaned = without_effect_tokens(program)
    if cleaned is not program or not any(map(_has_dead_code, _bodies(program.graph_module))):
        return cleaned
    return _cleaned_copy(program)


def _cleaned_copy(program: ExportedProgram) -> ExportedProgram:
    copied = copy.copy(program)
    copied._graph_module = _copy_graph_module(program.graph_module)
    copied._graph_signature = copy.deepcopy(program.graph_signature)
    return cast(ExportedProgram, _remove_effect_tokens(copied))


def _bodies(module: torch.fx.GraphModule) -> Iterator[torch.fx.GraphModule]:
    return (m for m in module.modules() if isinstance(m, torch.fx.GraphModule) and m is not module)


def _has_dead_code(module: torch.fx.GraphModule) -> bool:
    return any(not node.users and not node.is_impure() for node in module.graph.nodes)


def _copy_graph_module(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Return a module with copies of its graph and nested graphs; other attributes are shared."""
    copies = {
        name: _copy_graph_module(child)
        for name, child in module._modules.items()
        if isinstance(child, torch.fx.GraphModule)
    }
    # The constructor of a GraphModule recompiles its children, so the children are copied too.
    root = torch.nn.Module()
    vars(root).update(vars(module), _modules={**module._modules, **copies})
    result = torch.fx.GraphModule(root, copy.deepcopy(module.graph))
    result.meta = dict(module.meta)
    result._modules.update(copies)
    return result


GraphPickler: Any = _graph_pickler.GraphPickler

# The options of a GraphPickler that pickles all operators, and all items of a node's meta.
PICKLE_ALL = _graph_pickler.Options(ops_filter=None, node_metadata_key_filter=None)


class GraphCarrier(torch.fx.GraphModule):  # type: ignore[misc]
    """A module that only has a graph, because `GraphPickler` cannot pickle a graph alone."""

    def recompile(self) -> None:
        """Generate no code: pickling calls this method, but only the graph is needed."""


def graph_carrier(graph: torch.fx.Graph) -> GraphCarrier:
    carrier = GraphCarrier.__new__(GraphCarrier)
    torch.nn.Module.__init__(carrier)
    carrier.__dict__[GRAPH_SLOT] = graph
    return carrier


# Operators that read an inner tensor of a tensor subclass. In an exported graph, the nodes of these
# operators come before the nodes of all modules.
INNER_TENSOR_TARGETS = frozenset({torch.ops.export.access_subclass_inner_tensor.default})

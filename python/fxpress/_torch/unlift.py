"""Import torch's names for the module of an exported program, and for guards on its inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import sympy
import torch
import torch.fx
from torch._dynamo import dont_skip_tracing as dont_skip_tracing
from torch._export import non_strict_utils
from torch._export.passes import add_runtime_assertions_for_constraints_pass as range_pass
from torch.export import ExportedProgram, _unlift
from torch.export.graph_signature import OutputKind
from torch.fx import _utils as fx_utils
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP
from torch.utils._sympy.printers import PythonPrinter as PythonPrinter
from torch.utils._sympy.solve import try_solve

from fxpress._torch.fx import NodeSourceAction, provenance_rules

MUTATIONS = (
    OutputKind.BUFFER_MUTATION,
    OutputKind.USER_INPUT_MUTATION,
    OutputKind.PARAMETER_MUTATION,
)

# The base class of the modules that `ExportedProgram.module` returns; it cannot be called.
StatefulGraphModule: type[torch.fx.GraphModule] = _unlift._StatefulGraphModule
GuardsFn: type[torch.nn.Module] = _unlift.GuardsFn
# torch.export recognizes this hook by its identity.
check_inputs_hook: Callable[..., None] = _unlift._check_input_constraints_pre_hook
check_input_constraints: Callable[..., None] = _unlift._check_input_constraints_for_module

modules_among_inputs: Callable[[Any], set[type]] = (
    non_strict_utils._get_graph_inputs_of_type_nn_module
)
register_modules_as_nodes = non_strict_utils._enter_enable_graph_inputs_of_type_nn_module
deregister_modules_as_nodes = non_strict_utils._exit_enable_graph_inputs_of_type_nn_module

first_stack: Callable[[torch.fx.Graph], Any] = fx_utils.first_call_function_nn_module_stack
range_as_ints: Callable[[Any], tuple[Any, Any]] = range_pass._convert_range_to_int

# Returns False if the call stack has a file of a tool that needs graphs without guards.
guards_are_welcome: Callable[[], bool] = _unlift._ok_to_generate_guards_fn

# Rules for the `from_node` of the nodes that `ExportedProgram.module` creates.
CREATED = provenance_rules("ExportedProgram.module()", NodeSourceAction.CREATE)
REPLACED = provenance_rules(
    "ExportedProgram.module().unlift()", NodeSourceAction.CREATE, NodeSourceAction.REPLACE
)

# The globals of the code of guards.
GUARD_NAMES: dict[str, Any] = {**SYMPY_INTERP, "math": math, "inf": float("inf")}


def solved_for(equation: sympy.Expr, symbol: sympy.Symbol) -> sympy.Expr | None:
    """Solve an equation for a symbol; None if torch's solver finds no solution."""
    solution = try_solve(equation, symbol)
    return None if solution is None else solution[1]


def guards_of_trace(program: ExportedProgram) -> list[str]:
    return program._guards_code  # type: ignore[no-any-return]


def used_names(graph: torch.fx.Graph) -> list[str]:
    """Return the names that are used in a graph's namespace, sorted by length, then by text."""
    return sorted(graph._graph_namespace._used_names, key=lambda name: (len(name), name))


def new_graph_like(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Return a graph without nodes, with the tracer class of another graph."""
    return torch.fx.Graph(tracer_cls=graph._tracer_cls)


def tracer_to_keep(graph: torch.fx.Graph) -> type | None:
    """Return the tracer class that a GraphModule stores; None for a local class (not picklable)."""
    tracer = graph._tracer_cls
    return None if tracer is None or "<locals>" in tracer.__qualname__ else tracer

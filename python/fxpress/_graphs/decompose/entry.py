"""Decompose exported programs: `run_decompositions` and `_decompose_exported_program`."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram

from fxpress import _native
from fxpress._base.arguments import check_program
from fxpress._base.errors import InternalError
from fxpress._base.observing.progress import Progress, Report, check_progress, reporting
from fxpress._files.serde.body_constants import lift_body_constants
from fxpress._graphs.decompose import report
from fxpress._graphs.decompose.check import checks, difference
from fxpress._graphs.decompose.composites import (
    COLLECTING,
    _split_decomp_table_to_cia_and_python_decomp,
    user_kernel,
)
from fxpress._graphs.decompose.plan import Plan
from fxpress._graphs.decompose.program import build_from_templates
from fxpress._graphs.decompose.shared_state import with_views, without_views
from fxpress._graphs.decompose.tables import TABLES
from fxpress._graphs.decompose.values import UnsafeError
from fxpress._graphs.decompose.whole import traced
from fxpress._graphs.trace.blocks import fast_tracing
from fxpress._torch import decompose as compat
from fxpress._torch import decompose_whole
from fxpress._torch.deferred_code import deferring
from fxpress._torch.export import with_distinct_names
from fxpress._torch.watching import operation, phase


def _sizes(made: ExportedProgram, program: ExportedProgram, *_: Any, **__: Any) -> dict[str, int]:
    return {"nodes": len(program.graph.nodes), "new nodes": len(made.graph.nodes)}


@operation("decompose.run_decompositions", lambda made, ep, **_: _sizes(made, ep))
def _decompose_exported_program(
    ep: ExportedProgram,
    *,
    cia_to_decomp: dict[Any, Callable[..., Any]],
    python_decomp_table: dict[Any, Callable[..., Any]],
    joint_loss_index: int | None,
    decompose_custom_triton_ops: bool,
) -> ExportedProgram:
    """Return a program whose operators are decomposed by functions from tables.

    Args:
        ep: the program.
        cia_to_decomp: composite operator -> the function that decomposes or keeps it.
        python_decomp_table: operator that is not composite -> its decomposition.
        joint_loss_index: index of the output that is the loss of a joint graph; None: build no
            joint graph.
        decompose_custom_triton_ops: whether to decompose custom operators that call Triton kernels.

    Raises:
        InternalError: in a block of `check_templates`, the result differs from torch's full trace.

    Exceptions of torch's trace pass through.

    Stands in for `torch.export.exported_program._decompose_exported_program`.
    """
    rest = (joint_loss_index, decompose_custom_triton_ops)
    work = functools.partial(_decomposed, ep, cia_to_decomp, python_decomp_table, *rest, None)
    return _native.on_unchanged(ep.graph, work)


def _decomposed(
    ep: ExportedProgram,
    cia_to_decomp: dict[Any, Callable[..., Any]],
    python_decomp_table: dict[Any, Callable[..., Any]],
    joint_loss_index: int | None,
    decompose_custom_triton_ops: bool,
    progress: Report | None,
) -> ExportedProgram:
    """Return the decomposed program; call `progress` for each node of `ep` that is done."""
    ep = with_distinct_names(lift_body_constants(ep))
    without_shared_state = without_views(ep)
    if without_shared_state is not ep:
        options = (joint_loss_index, decompose_custom_triton_ops, progress)
        made = _decomposed(without_shared_state, cia_to_decomp, python_decomp_table, *options)
        return with_views(made, ep)
    summary = report.begin()
    summary.calls = sum(node.op == "call_function" for node in _native.list_nodes(ep.graph))
    surroundings = (*compat.surroundings(), decompose_custom_triton_ops)
    table = TABLES.get(cia_to_decomp, python_decomp_table, surroundings)
    user_operator = user_kernel()
    rest = (python_decomp_table, joint_loss_index, decompose_custom_triton_ops)
    naming = table.names.of(ep, joint_loss_index)

    def trace_fully(reason: str) -> ExportedProgram:
        summary.reason = reason
        overridden = table.plain.in_force()
        uses_templates = not table.refused and not user_operator
        with phase("whole trace"), fast_tracing(), deferring(), _native.RareCollections():
            made, summary.instantiated = traced(
                ep, overridden, *rest, uses_templates=uses_templates, naming=naming
            )
        return made

    if decompose_whole.is_joint(ep, joint_loss_index):
        return trace_fully("the program is a joint graph")
    if user_operator:
        return trace_fully(f"the kernel of {user_operator} is the user's")
    cached = None
    if checks():
        mode = decompose_whole.fake_mode_of(ep.graph_module)
        cached = compat.cached_results(mode)
    try:
        with _native.RareCollections():
            made, plan = build_from_templates(
                ep, table, decompose_custom_triton_ops, progress, naming
            )
        _fill_report(summary, plan)
    except UnsafeError as unsafe:
        made = trace_fully(str(unsafe))
    if cached is None or not summary.instantiated:
        return made
    # Restore the cache of fake tensors, because the results of the full trace depend on it.
    compat.restore_cached_results(mode, cached)
    checked = None if naming is None else naming.to_check(made.graph)
    overridden = table.plain.in_force()
    expected, _ = traced(ep, overridden, *rest, uses_templates=False, naming=checked)
    found = difference(made, expected)
    if found is not None:
        raise InternalError(f"the program built from templates differs from a full trace: {found}")
    return expected


def _fill_report(summary: report.Report, plan: Plan) -> None:
    summary.instantiated = len(plan.instances)
    summary.traced = plan.traced
    counts = Counter(instance.node.target for instance in plan.instances)
    summary.by_operator = {str(target): count for target, count in counts.items()}
    summary.kept = len({instance.template for instance in plan.instances}) - plan.traced


@operation("decompose.run_decompositions", _sizes)
def run_decompositions(
    program: ExportedProgram,
    decomp_table: dict[Any, Callable[..., Any]] | None = None,
    decompose_custom_triton_ops: bool = False,
    *,
    progress: Progress = False,
) -> ExportedProgram:
    """Return a program whose operators are decomposed.

    Args:
        program: the program, which is not changed.
        decomp_table: operator -> its decomposition. None: torch's default table. With {}, only
            composite operators that cannot be kept are decomposed.
        decompose_custom_triton_ops: whether to decompose custom operators that call Triton kernels.
        progress: how to show progress, in nodes: True, False or a function of (done, total, what).
            If torch traces the entire program, progress is shown only at the end.

    Raises:
        TypeError: `program` is not an ExportedProgram, or `progress` has another type.
        UnsupportedError: the program writes to state tensors that share a storage, and they have
            several dtypes or are parts of a parameter.
        ImportError: `progress` needs a package that is not installed.

    Exceptions of torch's trace pass through.

    Stands in for the method `torch.export.ExportedProgram.run_decompositions`.

    Example:
        >>> from fxpress.decompose import run_decompositions
        >>> decomposed = run_decompositions(program)
        >>> torch.ops.aten.linear.default in {node.target for node in decomposed.graph.nodes}
        False
    """
    check_program(program, "program")
    check_progress(progress)
    if decomp_table is None:
        decomp_table = torch.export.default_decompositions()
    with compat.outside_of_fake_mode():
        with phase("table"), COLLECTING.block():
            table = compat.materialized(decomp_table)
            composites, others = _split_decomp_table_to_cia_and_python_decomp(table)
        with reporting(progress, "decomposing", len(program.graph.nodes), "nodes") as report:
            parts = (composites, others, None, decompose_custom_triton_ops, report)
            work = functools.partial(_decomposed, program, *parts)
            return _native.on_unchanged(program.graph, work)


def forget_templates() -> None:
    """Free the recorded traces of calls, so that the next decomposition traces all calls again.

    torch has no such function.

    Example:
        >>> from fxpress import decompose
        >>> decompose.forget_templates()
    """
    TABLES.forget_templates()

"""Speed up `torch.export.export` and `make_fx`, and create modules of exported programs.

Stands in for a part of `torch.export.export`, and for `torch.export.ExportedProgram.module`.
Exported programs, their names and their metadata equal torch's. Dynamo, autograd, the dispatcher
and the user's code run as without fxpress. fxpress creates the nodes, their metadata and stack
traces, the generated code, and the graph of `ExportedProgram.module`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fxpress._torch.probes import component

with component("export"):
    from torch.export import ExportedProgram
    from torch.fx import GraphModule

    from fxpress import _native
    from fxpress._base.frame_space import with_space
    from fxpress._graphs.export.unlift import _unlift_exported_program_lifted_states, module
    from fxpress._graphs.trace.blocks import fast_tracing
    from fxpress._torch import native_tables
    from fxpress._torch.deferred_code import deferring
    from fxpress._torch.tracing import trace_for_training, trace_operators
    from fxpress._torch.watching import operation

    native_tables.fx()  # fills the native table of torch.fx objects, which code generation reads

__all__ = ["_export_for_training", "_unlift_exported_program_lifted_states", "make_fx", "module"]


@operation("export", lambda made, *_, **__: {"nodes": len(made.graph.nodes)})
@with_space
def _export_for_training(*args: Any, **kwargs: Any) -> ExportedProgram:
    """Export a module: trace it, clean the graph, and create a program.

    Stands in for `torch.export._trace._export_for_training`, with torch's arguments, result and
    exceptions. While fxpress is installed, `torch.export.export` calls this function.

    Example:
        >>> with fxpress.installed():
        ...     again = torch.export.export(model, (x,))
        >>> fxpress.graph_hash(again) == fxpress.graph_hash(program)
        True
    """
    with fast_tracing(), deferring(), _native.RareCollections():
        return trace_for_training(*args, **kwargs)


def make_fx(f: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., GraphModule]:
    """Return a function that traces `f` with its arguments to a graph of operators.

    Args:
        f: a function of tensors, which runs at each trace.
        args, kwargs: the further arguments of torch's `make_fx`, such as `tracing_mode`.

    Returns:
        A function with the arguments of `f`, which returns a GraphModule. The graph, its names and
        its metadata equal torch's. A trace of fake tensors is faster than in torch.

    Exceptions of `f` and of torch's trace pass through.

    Stands in for `torch.fx.experimental.proxy_tensor.make_fx`, which `torch.compile` calls too.

    Example:
        >>> from fxpress.export import make_fx
        >>> traced = make_fx(lambda x: x.sin() + 1, tracing_mode="fake")(torch.ones(2))
        >>> [node.name for node in traced.graph.nodes]
        ['x_1', 'sin', 'add', 'output']
    """
    trace = trace_operators(f, *args, **kwargs)

    @functools.wraps(trace)
    def trace_fast(*inputs: Any) -> GraphModule:
        with fast_tracing():
            return trace(*inputs)

    return trace_fast

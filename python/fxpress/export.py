"""Export programs, faster, and make modules of them.

Stands in for what `torch.export.export` is made of, and for `torch.export.ExportedProgram.module`.
The program, its names and its metadata are torch's. Dynamo, autograd, the dispatcher and the user's
code run as for torch; the nodes, their metadata, stack traces and generated code are ours. So is
the graph of a program's module, which is written natively.
"""

from __future__ import annotations

from typing import Any

from fxpress._torch.probes import component

with component("export"):
    from torch.export import ExportedProgram

    from fxpress import _native
    from fxpress._base.frame_space import with_space
    from fxpress._graphs.export.unlift import _unlift_exported_program_lifted_states, module
    from fxpress._graphs.trace.blocks import fast_tracing
    from fxpress._torch import native_tables
    from fxpress._torch.deferred_code import deferring
    from fxpress._torch.tracing import trace_for_training
    from fxpress._torch.watching import operation

    native_tables.fx()  # for the code that is generated later

__all__ = ["_export_for_training", "_unlift_exported_program_lifted_states", "module"]


@operation("export", lambda made, *_, **__: {"nodes": len(made.graph.nodes)})
@with_space
def _export_for_training(*args: Any, **kwargs: Any) -> ExportedProgram:
    """Export a module: trace it, clean the graph, and make a program of it.

    Stands in for `torch.export._trace._export_for_training`, which `torch.export.export` calls; the
    arguments, the result and the exceptions are those of torch. One calls `torch.export.export`.

    Example:
        >>> with fxpress.installed():
        ...     again = torch.export.export(model, (x,))
        >>> fxpress.graph_hash(again) == fxpress.graph_hash(program)
        True
    """
    with fast_tracing(), deferring(), _native.RareCollections():
        return trace_for_training(*args, **kwargs)

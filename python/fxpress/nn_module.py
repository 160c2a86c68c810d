"""Track modules while Dynamo traces: stands in for ``torch._dynamo.variables.nn_module``.

Dynamo uses this module's classes under torch's names while fxpress is installed
(:func:`fxpress.install`). Each class derives from the torch class that it replaces, so that the
instances pass `isinstance` checks.
"""

from collections.abc import Callable

from fxpress._torch.probes import component

with component("nn_module"):
    from fxpress._graphs.tracking.guards import guard_to_detect_forward_monkeypatching
    from fxpress._graphs.tracking.lazy import initialize_lazy_module
    from fxpress._graphs.tracking.specialized import NNModuleVariable
    from fxpress._graphs.tracking.stack import record_nn_module_stack
    from fxpress._graphs.tracking.unspecialized import (
        FSDPManagedNNModuleVariable,
        UnspecializedBuiltinNNModuleVariable,
        UnspecializedNNModuleVariable,
    )
    from fxpress._torch.tracking import tracker_caches, unlist_trackers

__all__ = [
    "FSDPManagedNNModuleVariable",
    "NNModuleVariable",
    "UnspecializedBuiltinNNModuleVariable",
    "UnspecializedNNModuleVariable",
    "guard_to_detect_forward_monkeypatching",
    "initialize_lazy_module",
    "record_nn_module_stack",
]

_TRACKERS = (
    NNModuleVariable,
    UnspecializedNNModuleVariable,
    UnspecializedBuiltinNNModuleVariable,
    FSDPManagedNNModuleVariable,
)
unlist_trackers(*_TRACKERS)


def caches() -> list[Callable[[], object]]:
    """Return functions that clear Dynamo's caches of `_TRACKERS`; `fxpress.install` calls them."""
    return tracker_caches(_TRACKERS)

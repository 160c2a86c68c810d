"""Cut a graph into submodules: stands in for `torch.fx.passes.split_module`.

The names, signatures and results of functions are torch's. Where torch's results are wrong,
fxpress's differ on purpose (docs/fidelity.md). The code of a result is generated on first access.
"""

from fxpress._torch.probes import component

with component("split_module"):
    from fxpress._graphs.split.split_module import (
        _LOGGER,
        Partition,
        _build_stitching_graph,
        _clone_nodes_into_partitions,
        _decompose_size_nodes,
        _detect_dependencies,
        _get_attr_from_qualname,
        _make_lite_graph_module,
        log,
        split_module,
        split_module_simple,
    )

__all__ = ["Partition", "split_module", "split_module_simple"]

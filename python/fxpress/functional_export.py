"""Capture callables as graphs: stands in for `torch._dynamo.functional_export`.

The names, signatures and results of functions are torch's. Where torch's results are wrong,
fxpress's differ on purpose (docs/fidelity.md). Dynamo traces the callable, as it does without
fxpress. Native code then rewrites and cleans the graph, and generates its code on first access.
"""

from fxpress._torch.probes import component

with component("functional_export"):
    from fxpress._graphs.capture.bytecode import (
        DynamoBytecodeFlatten,
        DynamoBytecodeUnflatten,
        InputProcessor,
        Yield,
        _DynamoBytecodeCodeGen,
    )
    from fxpress._graphs.capture.constraints import (
        _suggest_or_raise_constraint_violation,
        check_constraints,
    )
    from fxpress._graphs.capture.from_bytecode import (
        _normalize_shuffle_graph,
        create_fx_graph_from_captured_output,
        normalize_graph_module,
    )
    from fxpress._graphs.capture.functional_export import (
        ModuleToTrace,
        _dynamo_graph_capture_for_export,
        clean_nn_module_stack,
        dynamo_graph_capture_for_export,
    )
    from fxpress._graphs.capture.root_names import (
        clean_export_root,
        clean_export_root_string,
        clean_nn_module_stack_and_source_fn,
        post_process_error_msg,
    )
    from fxpress._graphs.capture.transformer import DynamoGraphTransformer
    from fxpress._graphs.tracking.reuse.report import ReuseReport, reuse_report
    from fxpress._graphs.tracking.reuse.settings import check_reuse, reuse_layers
    from fxpress._torch.capture import EXPORT_ROOT_REPLACEMENTS, ExportTracerOutput

__all__ = [
    "EXPORT_ROOT_REPLACEMENTS",
    "DynamoBytecodeFlatten",
    "DynamoBytecodeUnflatten",
    "DynamoGraphTransformer",
    "ExportTracerOutput",
    "InputProcessor",
    "ModuleToTrace",
    "ReuseReport",
    "Yield",
    "_DynamoBytecodeCodeGen",
    "_dynamo_graph_capture_for_export",
    "_normalize_shuffle_graph",
    "_suggest_or_raise_constraint_violation",
    "check_constraints",
    "check_reuse",
    "clean_export_root",
    "clean_export_root_string",
    "clean_nn_module_stack",
    "clean_nn_module_stack_and_source_fn",
    "create_fx_graph_from_captured_output",
    "dynamo_graph_capture_for_export",
    "normalize_graph_module",
    "post_process_error_msg",
    "reuse_layers",
    "reuse_report",
]

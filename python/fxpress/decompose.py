"""Decompose exported programs: stands in for `ExportedProgram.run_decompositions`.

Each distinct call of an operator is traced once, by torch's own code, on fake tensors. The traced
nodes are a template, which is instantiated for every equivalent call. If templates are not known
to be correct for a program, the entire program is traced, as in torch.
"""

from fxpress._torch.probes import component

with component("decompose"):
    from fxpress._graphs.decompose.check import check_templates
    from fxpress._graphs.decompose.composites import (
        _collect_all_valid_cia_ops,
        _collect_all_valid_cia_ops_for_aten_namespace,
        _split_decomp_table_to_cia_and_python_decomp,
    )
    from fxpress._graphs.decompose.entry import (
        _decompose_exported_program,
        forget_templates,
        run_decompositions,
    )
    from fxpress._graphs.decompose.names import any_names
    from fxpress._graphs.decompose.report import Report, report
    from fxpress._graphs.decompose.tables import _override_composite_implicit_decomp

__all__ = [
    "Report",
    "any_names",
    "check_templates",
    "forget_templates",
    "report",
    "run_decompositions",
]

"""Make modules of exported programs: stands in for `torch.export.ExportedProgram.module`.

The module is torch's: a GraphModule with the same graph, names, state, hooks and guards. Its graph
is written natively, and its Python code is generated when it is first needed.
"""

from fxpress._torch.probes import room

with room("export"):
    from fxpress._export.unlift import _unlift_exported_program_lifted_states, module

__all__ = ["_unlift_exported_program_lifted_states", "module"]

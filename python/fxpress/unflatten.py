"""Rebuild the module tree of an exported program: stands in for `torch.export.unflatten`.

Names, signatures and results of functions are torch's. Native code plans the entire tree before it
creates the first module. Modules run on fxpress's engine instead of `torch.fx.Interpreter`.
"""

import sys

from fxpress._torch.probes import component

with component("unflatten"):
    from fxpress._graphs.unflatten import switch
    from fxpress._graphs.unflatten.attributes import (
        _add_submodule,
        _assign_attr,
        _call_name,
        _compute_accessor,
        _get_submodule,
        _is_call_name,
        _is_prefix,
    )
    from fxpress._graphs.unflatten.frames import (
        _add_spec,
        _generate_flatten,
        _generate_flatten_spec,
        _generate_unflatten,
        _ModuleFrame,
        _outline_submodules,
        _SubmoduleEntry,
    )
    from fxpress._graphs.unflatten.modules import (
        InterpreterModule,
        InterpreterModuleDispatcher,
        UnflattenedModule,
        _SubmoduleBase,
        unflatten,
    )
    from fxpress._graphs.unflatten.passes import (
        _check_graph_equivalence,
        _copy_graph_attrs,
        _deduplicate_modules,
        _fix_nn_module_stacks,
        _inplace_buffer_and_input_mutations,
        _reorder_submodules,
        _root_module_type,
        _sink_params,
    )
    from fxpress._graphs.unflatten.source import _IVals
    from fxpress._graphs.unflatten.switch import _disable_interpreter as _disable_interpreter
    from fxpress._torch.export import AttrKind as _AttrKind
    from fxpress._torch.export import FlatArgsAdapter
    from fxpress._torch.export import TensorID as _TensorID

switch.holder = sys.modules[__name__]

__all__ = [
    "FlatArgsAdapter",
    "InterpreterModule",
    "InterpreterModuleDispatcher",
    "UnflattenedModule",
    "unflatten",
]

# True: new modules run on fxpress's engine. False: they run the code generated from their graphs.
RUN_WITH_INTERPRETER = True

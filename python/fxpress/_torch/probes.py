"""Check, when a component is imported, that torch has the functions and parameters that it needs.

An unsupported torch then raises one clear error. A missing name makes the import fail anyway, but a
missing parameter would fail much later, in a call. So `_CALLS` lists the functions of torch that a
component calls, with their arguments.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

from torch.fx import _compatibility

from fxpress._base.errors import UnsupportedError, UnsupportedTorchError
from fxpress._torch.versions import EXPECTED, is_of_torch, minor

# torch.fx's tables of all objects that are marked backward-compatible, and of all marked objects.
COMPATIBILITY_MARKS: list[dict[Any, None]] = [
    vars(_compatibility)[name]
    for name in ("_BACK_COMPAT_OBJECTS", "_MARKED_WITH_COMPATIBILITY")
    if name in vars(_compatibility)
]

# Component -> the functions of torch that it calls or overrides. An underscore is a positional
# argument (the first one of a method is `self`), and a name is a keyword argument.
_CALLS = {
    "split_module": """
        torch.fx.graph_module:GraphModule(_, _)
        torch.fx.graph_module:GraphModule.recompile(_)
        torch.fx.graph_module:_forward_from_src(_, _, _)
        torch.fx.graph_module:_loader.cache(_, _, _)
        torch.fx.graph_module:_WrappedCall(_, _)
        torch.fx.graph:Graph.create_node(_, _, _, type_expr)
        torch.fx.graph:Graph.python_code(_, _)
        torch.fx.graph:_is_from_torch(_)
        torch.fx.node:_get_qualified_name(_)
    """,
    "unflatten": """
        torch.export._tree_utils:reorder_kwargs(_, _)
        torch.export._remove_effect_tokens_pass:_remove_effect_tokens(_)
        torch._export.utils:_check_input_constraints_for_graph(_, _, _)
    """,
    "export": """
        torch._dynamo:dont_skip_tracing(_)
        torch._export.non_strict_utils:_get_graph_inputs_of_type_nn_module(_)
        torch._export.non_strict_utils:_enter_enable_graph_inputs_of_type_nn_module(_)
        torch._export.non_strict_utils:_exit_enable_graph_inputs_of_type_nn_module(_)
        torch._export.passes.add_runtime_assertions_for_constraints_pass:_convert_range_to_int(_)
        torch.export._remove_effect_tokens_pass:_remove_effect_tokens(_)
        torch.export._unlift:_ok_to_generate_guards_fn()
        torch.export._unlift:_unlift_exported_program_lifted_states(_, check_guards)
        torch.export._unlift:_check_input_constraints_pre_hook(_, _, _)
        torch.fx._utils:first_call_function_nn_module_stack(_)
        torch.fx.graph:_PyTreeInfo(_, _, _)
        torch.fx.graph:Graph(tracer_cls)
        torch.fx.traceback:NodeSource(_, _, _)
        torch.utils._sympy.solve:try_solve(_, _)
        torch.export._trace:_export_for_training(_, _, _, _)
        torch._library.utils:handle_dispatch_mode(_, _, _)
        torch._subclasses.fake_impls:fast_detach(_, _)
        torch.fx.experimental.proxy_tensor:_should_save_eager_input_vals(_)
        torch.fx.experimental.proxy_tensor:make_fx(_, _)
        torch.fx.experimental.proxy_tensor:proxy_call(_, _, _, _, _)
        torch.fx.experimental.proxy_tensor:set_meta(_, _)
        torch.fx.experimental.proxy_tensor:set_original_aten_op(_)
        torch.fx.experimental.proxy_tensor:track_tensor(_, _, constant, tracer)
        torch.fx.experimental.proxy_tensor:track_tensor_tree(_, _, constant, tracer)
        torch.fx.experimental.symbolic_shapes:_free_unbacked_symbols_with_path(_, _, _, _, _, _)
        torch.fx.passes.shape_prop:_extract_tensor_metadata(_)
        torch.fx:Tracer.create_args_for_root(_, _, _, _)
    """,
    "serialize": """
        torch.serialization:_load(_, _, _, encoding)
        torch.serialization:_is_torchscript_zip(_)
        torch._weights_only_unpickler:Unpickler(_, encoding)
        torch._weights_only_unpickler:Unpickler.load(_)
        torch._weights_only_unpickler:_get_allowed_globals()
        torch._weights_only_unpickler:_get_user_allowed_globals()
        torch.export.exported_program:ExportedProgram(root, graph, graph_signature, state_dict,
            range_constraints, module_call_graph, example_inputs, constants, verifiers)
        torch.export.exported_program:_create_graph_module_for_export(_, _)
        torch.fx.experimental.symbolic_shapes:ShapeEnv(assume_static_by_default)
        torch._subclasses.fake_tensor:FakeTensorMode(allow_fallback_kernels,
            allow_non_fake_inputs, shape_env)
        torch.utils._pytree:treespec_dumps(_, _)
    """,
    "archive": """
        torch.export.pt2_archive._package_weights:group_weights(_)
    """,
    "state": "",
    "pipeline": """
        torch.distributed.distributed_c10d:_get_default_store()
        torch.distributed:new_group(_, timeout, use_local_synchronization)
        torch.distributed.pipelining.stage:PipelineStage(_, _, _, _, group)
        torch.distributed.pipelining.stage:PipelineStage._compute_outputs(_, module)
        torch.distributed.pipelining.stage:PipelineStage.forward_one_chunk(_, _, _, _)
        torch.distributed.pipelining.stage:PipelineStage.backward_one_chunk(_, _)
        torch.distributed.pipelining.stage:PipelineStage.backward_weight_one_chunk(_, _)
        torch.distributed.pipelining.stage:PipelineStage._compute_input_grads(_, _, _)
        torch.distributed.pipelining._backward:construct_reverse_graph(_)
        torch.distributed.pipelining._backward:get_param_groups(_, _, _)
        torch.distributed.pipelining._backward:reverse_closure(_, _, _)
    """,
    "checkpoint": """
        torch.distributed.checkpoint.default_planner:create_default_global_save_plan(_)
        torch.distributed.checkpoint.metadata:ChunkStorageMetadata(_, _)
        torch.distributed.checkpoint.metadata:MetadataIndex(_, _)
        torch.distributed.checkpoint.metadata:TensorStorageMetadata(_, _, _)
        torch.distributed.checkpoint.planner:WriteItem(_, _, tensor_data)
    """,
    "decompose": """
        torch.export._trace:_export_to_aten_ir(_, _, _, _, _, decomp_table,
            _prettify_placeholder_names, decompose_custom_triton_ops)
        torch._subclasses.functional_tensor:FunctionalTensorMode(pre_dispatch, export,
            _allow_token_discovery)
        torch.fx.experimental.proxy_tensor:make_fx(_, decomposition_table, record_module_stack)
        torch.fx.experimental.proxy_tensor:track_tensor(_, _, constant, tracer)
        torch.fx.experimental.proxy_tensor:get_proxy_slot(_, _, _)
        torch.fx.traceback:NodeSource(_, _, _)
        torch.fx.traceback:set_current_meta(_, _)
    """,
    "functional_export": """
        torch._dynamo.convert_frame:fullgraph_capture(_, _, _, constraints)
        torch._dynamo.convert_frame:fullgraph_capture(_, _, constraints,
            _is_export_deprecated_do_not_use)
        torch._dynamo.convert_frame:get_traced_fn(_)
        torch._dynamo.eval_frame:check_user_input_output(_, _)
        torch._dynamo.eval_frame:argument_names(_, _, _)
        torch._guards:TracingContext(_)
        torch.fx.traceback:NodeSource(_, _, _)
        torch.fx.graph:_PyTreeInfo(_, _, _)
        torch.export._unlift:_get_input_paths(_, _)
        torch.export._unlift:_replace_sources(_, _)
    """,
    "nn_module": """
        torch._dynamo.variables.base:VariableTracker.build(_, _, _, realize)
        torch._dynamo.variables.nn_module:NNModuleVariable(_, _, _)
        torch._dynamo.variables.nn_module:NNModuleVariable.call_function(_, _, _, _)
        torch._dynamo.variables.nn_module:NNModuleVariable.call_method(_, _, _, _, _, _)
        torch._dynamo.variables.nn_module:NNModuleVariable.mp_subscript_impl(_, _, _)
        torch._dynamo.variables.nn_module:NNModuleVariable.tp_iter_impl(_, _)
        torch._dynamo.variables.nn_module:NNModuleVariable.unpack_var_sequence(_, _)
        torch._dynamo.variables.nn_module:NNModuleVariable.call_obj_hasattr(_, _, _)
        torch._dynamo.variables.nn_module:NNModuleVariable.is_training(_, _)
        torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable(_)
        torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable.call_function(_, _, _, _)
        torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable.call_method(_, _, _, _, _)
        torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable.generic_getattr(_, _, _)
        torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable.getattr_helper(_, _, _, _)
        torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable.lookup_class_mro_attr(_, _)
        torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable.has_key_in_generic_dict(_,
            _, _)
        torch._dynamo.variables.nn_module:UnspecializedNNModuleVariable.get_source_by_walking_mro(_,
            _, _)
        torch._dynamo.variables.nn_module:initialize_lazy_module(_, _, _, _)
        torch._dynamo.variables.nn_module:record_nn_module_stack(_, _, _, _)
        torch._dynamo.variables.nn_module:guard_to_detect_forward_monkeypatching(_, _)
        torch._dynamo.exc:unimplemented(gb_type, context, explanation, hints)
        torch._dynamo.exc:raise_observed_exception(_, _, args)
        torch._dynamo.utils:proxy_args_kwargs(_, _)
    """,
}
COMPONENTS = tuple(_CALLS)  # each is also the name of a public module of fxpress
_USES = {  # component -> other components that it uses
    "unflatten": ("split_module",),
    "export": ("split_module",),
    "serialize": ("split_module",),
    "archive": ("serialize",),
    "pipeline": ("checkpoint", "unflatten"),
    "checkpoint": ("archive",),
    "decompose": ("serialize",),
    "functional_export": ("split_module",),
}
_CALL = re.compile(r"([\w.]+):([\w.]+)\(([^)]*)\)")


@functools.cache
def check(component: str) -> None:
    """Raise UnsupportedTorchError if torch lacks a function or argument that a component uses."""
    for used in _USES.get(component, ()):
        check(used)
    for module, path, arguments in _CALL.findall(_CALLS[component]):
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        given = re.findall(r"\w+", arguments)
        names = [name for name in given if name != "_"]
        try:
            inspect.signature(found).bind(
                *(None for name in given if name == "_"), **dict.fromkeys(names)
            )
        except TypeError as error:
            raise UnsupportedTorchError(f"{module}.{path}: {error}") from error


def is_known() -> bool:
    """Return whether fxpress was tested with the minor release of the installed torch."""
    return minor() in EXPECTED


def is_due_to_torch(error: Exception) -> bool:
    """Return whether an import failed because of the installed torch; True for unknown releases."""
    lacks_name = isinstance(error, (ImportError, AttributeError)) and is_of_torch(error)
    return lacks_name or isinstance(error, UnsupportedError) or not is_known()


@contextlib.contextmanager
def component(name: str) -> Iterator[None]:
    """Run a block that imports a component; UnsupportedTorchError if torch does not support it."""
    import torch

    try:
        check(name)
        yield
    except Exception as error:
        if not is_due_to_torch(error):
            raise
        raise UnsupportedTorchError(
            f"fxpress.{name} does not work with torch {torch.__version__}: {error}"
        ) from error

"""Probe the features in which releases of torch differ.

fxpress tests features, not version numbers. `EXPECTED` lists the features of each minor release,
and a test compares this list with the results of the probes.
"""

from __future__ import annotations

from functools import cached_property
from importlib.util import find_spec
from inspect import signature
from types import ModuleType
from typing import Any


class Features:
    """The features of the installed torch. The first read of a property probes torch's module."""

    @cached_property
    def fake_device_is_a_property(self) -> bool:
        """True if a fake tensor stores its device in `_fake_device`, not in `fake_device`."""
        from torch._subclasses.fake_tensor import FakeTensor

        return hasattr(FakeTensor, "fake_device")

    @cached_property
    def opaque_values_are_custom_classes(self) -> bool:
        """True if `is_opaque_value` has the newer name `is_custom_class_obj`."""
        from torch._library import opaque_object

        return hasattr(opaque_object, "is_custom_class_obj")

    @cached_property
    def opaque_records(self) -> bool:
        """True if archives may have records of opaque objects."""
        from torch.export.pt2_archive import constants

        return hasattr(constants, "OPAQUE_OBJ_FILENAME_PREFIX")

    @cached_property
    def symbols_by_name(self) -> bool:
        """True if a ShapeEnv has a table of symbols by name, and hints for symbols only."""
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        return hasattr(ShapeEnv(), "name_to_symbol")

    @cached_property
    def complex_constants_are_calls(self) -> bool:
        """True if generated code calls `complex` for constants whose repr loses a sign or fails."""
        from torch.fx import Graph

        graph = Graph()
        graph.call_function(abs, (1j,))
        return "complex(0.0, 1.0)" in graph.python_code("self").src

    @cached_property
    def boxed_arguments(self) -> bool:
        """True if generated code frees the arguments in `boxed_arg_indices` before the call."""
        from torch.fx import Graph

        graph = Graph()
        graph.call_function(abs, (1,)).meta["boxed_arg_indices"] = (0,)
        return "boxed_arg_0" in graph.python_code("self").src

    @cached_property
    def provenance_is_shared(self) -> bool:
        """True if a NodeSource shares, and does not copy, the `from_node` entries of its node."""
        from torch.fx import Graph
        from torch.fx.traceback import NodeSource

        node = Graph().placeholder("x")
        node.meta["from_node"] = [NodeSource(node)]
        return NodeSource(node).from_node[0] is node.meta["from_node"][0]

    @cached_property
    def calls_check_is_tracing(self) -> bool:
        """True if a module's call checks `_is_tracing`, which is False while tracing is paused."""
        from torch.nn import Module

        return "_is_tracing" in Module._call_impl.__code__.co_names

    @cached_property
    def fake_tensors_of_cpp(self) -> bool:
        """True if torch's C++ has fake tensors that are not instances of `FakeTensor`."""
        import torch

        return hasattr(torch._C, "_is_fake_tensor")

    @cached_property
    def operators_raise_plain_errors(self) -> bool:
        """True if operators raise RuntimeError for any std::exception, never ValueError."""
        import torch

        try:
            torch.ops.aten.tensor_split.sections(torch.ones(1), 2**62)  # std::length_error
        except RuntimeError:
            return True
        except ValueError:
            return False
        return False

    @cached_property
    def lists_of_lists_of_ints(self) -> bool:
        """True if torch serializes an argument that is a list of lists (not tuples) of ints."""
        return _is_written([[1], [2]], None)

    @cached_property
    def empty_lists_of_lists(self) -> bool:
        """True if torch serializes an empty list for an argument declared as a list of lists."""
        import torch

        return _is_written([], torch.ListType(torch.ListType(torch.IntType.get())))

    @cached_property
    def reading_validates_sparse_tensors(self) -> bool:
        """True if torch's loader itself validates sparse tensors in weights-only files."""
        from torch import serialization

        return "weights_only" in signature(serialization._load).parameters

    @cached_property
    def triton_on_cpu(self) -> bool:
        """True if torch serializes kernels of Triton's CPU backend on machines without GPU."""
        from torch.utils._triton import has_triton

        return "include_cpu" in signature(has_triton).parameters

    @cached_property
    def compiled_models_follow_streams(self) -> bool:
        """True if torch's loader of compiled models accepts `use_stream_affinity`."""
        import torch

        loader = torch._C._aoti.AOTIModelPackageLoader
        return "use_stream_affinity" in (loader.__init__.__doc__ or "")

    @cached_property
    def shapes_specs(self) -> bool:
        """True if `dynamic_shapes` may be a `ParamsSpec` or a `ShapesSpec`."""
        return find_spec("torch.fx.experimental._spec_binding") is not None

    @cached_property
    def outputs_need_inputs(self) -> bool:
        """True if the code generator of captured modules must process inputs before outputs."""
        from torch._dynamo.functional_export import _DynamoBytecodeCodeGen

        codegen = _of_torch(_DynamoBytecodeCodeGen)([], lambda: (), lambda *_: ())
        try:
            codegen.process_outputs(())
        except AssertionError:
            return True
        return False

    @cached_property
    def functionalization_may_keep_writes(self) -> bool:
        """True if functionalization, by default, keeps in-place writes to inputs."""
        from torch._subclasses.functional_tensor import FunctionalTensorMode

        return "_keep_input_mutations" in signature(FunctionalTensorMode).parameters

    @cached_property
    def nested_compilations_are_eager(self) -> bool:
        """True if compiled functions run eagerly while a program is traced."""
        from torch._dynamo import eval_frame

        return hasattr(eval_frame, "_use_eager_on_nested_compile")

    @cached_property
    def traced_numbers_have_values(self) -> bool:
        """True if `make_fx` stores a value in the meta of a placeholder for a number."""
        from torch.fx.experimental.proxy_tensor import make_fx

        graph = make_fx(lambda number: number)(1.5).graph
        return "val" in next(iter(graph.nodes)).meta

    @cached_property
    def modules_tracked_by_var_getattr(self) -> bool:
        """True if Dynamo's variables look up attributes by `var_getattr`."""
        return _tracks_modules_by("var_getattr", "bool_impl", "repr_impl", "sq_length")

    @cached_property
    def modules_tracked_by_slots(self) -> bool:
        """True if Dynamo's variables have methods named after CPython's slots, and `tp_methods`."""
        slots = ("tp_getattro_impl", "nb_bool_impl", "tp_repr_impl", "sq_length_impl")
        return _tracks_modules_by(*slots, "tp_methods")

    @cached_property
    def containers_have_slots(self) -> bool:
        """True if Dynamo's variable for modules implements `in` by `sq_contains_impl`."""
        return _tracks_modules_by("sq_contains_impl")

    @cached_property
    def hook_tables_have_types(self) -> bool:
        """True if Dynamo's variable for a dict of hooks has a parameter for the dict's type."""
        from torch._dynamo import variables

        return "user_cls" in signature(_of_torch(variables.NNModuleHooksDictVariable)).parameters

    @cached_property
    def partial_forwards_are_guarded_by_parts(self) -> bool:
        """True if Dynamo guards the function and arguments of a partial assigned to `forward`."""
        from torch._dynamo.variables import nn_module

        return hasattr(nn_module, "guard_to_detect_forward_partial_monkeypatching")

    @cached_property
    def methods_are_bound_to_variables(self) -> bool:
        """True if `UserMethodVariable` accepts the variable of its function, not the function."""
        from torch._dynamo.variables import UserMethodVariable

        return "im_func" in signature(UserMethodVariable).parameters


def _of_torch(cls: type[Any]) -> type[Any]:
    """Return torch's own class, even if `fxpress.install` has replaced it."""
    return getattr(cls, "_fxpress_original", cls)


def _is_written(value: object, declared: object) -> bool:
    """Return whether torch's serializer accepts an argument of a declared type."""
    from torch._export.serde.serialize import GraphModuleSerializer, SerializeError

    serializer = object.__new__(_of_torch(GraphModuleSerializer))
    try:
        serializer.serialize_input(value, declared)
    except (SerializeError, AssertionError):
        return False
    return True


def _tracks_modules_by(*methods: str) -> bool:
    """Return whether Dynamo's variable for modules itself defines methods of these names."""
    from torch._dynamo.variables.nn_module import NNModuleVariable

    return all(method in vars(_of_torch(NNModuleVariable)) for method in methods)


features = Features()

# Minor release of torch -> the names of the features that it has.
_2_13 = frozenset(
    {
        "fake_device_is_a_property",
        "hook_tables_have_types",
        "modules_tracked_by_var_getattr",
        "opaque_records",
    }
)
_2_14 = _2_13 - {"hook_tables_have_types", "modules_tracked_by_var_getattr"} | {
    "boxed_arguments",
    "complex_constants_are_calls",
    "empty_lists_of_lists",
    "fake_tensors_of_cpp",
    "functionalization_may_keep_writes",
    "lists_of_lists_of_ints",
    "modules_tracked_by_slots",
    "nested_compilations_are_eager",
    "opaque_values_are_custom_classes",
    "outputs_need_inputs",
    "partial_forwards_are_guarded_by_parts",
    "reading_validates_sparse_tensors",
    "shapes_specs",
    "traced_numbers_have_values",
}
_2_15 = _2_14 | {
    "calls_check_is_tracing",
    "compiled_models_follow_streams",
    "containers_have_slots",
    "methods_are_bound_to_variables",
    "operators_raise_plain_errors",
    "provenance_is_shared",
    "symbols_by_name",
    "triton_on_cpu",
}
EXPECTED: dict[str, frozenset[str]] = {"2.13": _2_13, "2.14": _2_14, "2.15": _2_15}


# The remedy if fxpress has no extension for the running torch.
REBUILD = (
    "install a newer fxpress, or build it for this torch with "
    "`pip install --no-deps --force-reinstall --no-binary fxpress fxpress`"
)


def minor() -> str:
    """Return the minor version of the running torch, such as "2.13"."""
    import torch

    return ".".join(torch.__version__.split(".")[:2])


def built_for() -> tuple[str, ...]:
    """Return the minor versions of torch for which fxpress has an `_aten` extension, in order."""
    return tuple(
        known
        for known in dict.fromkeys([*EXPECTED, minor()])
        if find_spec(f"fxpress._aten_{known.replace('.', '')}") is not None
    )


def is_of_torch(error: ImportError | AttributeError) -> bool:
    """Return whether an import of fxpress failed because torch lacks a module or a name."""
    if isinstance(error, ImportError):
        module = error.name or ""
    elif isinstance(error.obj, ModuleType):
        module = error.obj.__name__
    else:
        owner = error.obj if isinstance(error.obj, type) else type(error.obj)
        module = owner.__module__
    return module.partition(".")[0] == "torch"

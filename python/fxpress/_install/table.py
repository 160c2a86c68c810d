"""List, for each component, the names of torch that fxpress replaces."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A name of torch and its replacement, which ``install`` imports."""

    module: str  # dotted name of the torch module that defines the name, as in sys.modules
    name: str  # the name in `module`
    provider: tuple[str, str]  # (fxpress's module, the name of the replacement in it)


# List a name only for the module of torch that defines it. `install` finds other loaded modules
# that refer to the object, and modules that are loaded later import the stand-in. Do not list
# exception classes: `except` ignores `__subclasscheck__`, so a stand-in would catch nothing.
ENTRIES: list[Entry] = [
    Entry(torch_module, name, (our_module, name))
    for torch_module, our_module, names in (
        (
            "torch.fx.passes.split_module",
            "fxpress.split_module",
            (
                "split_module",
                "split_module_simple",
                "Partition",
                "_decompose_size_nodes",
                "_make_lite_graph_module",
                "_get_attr_from_qualname",
                "_detect_dependencies",
                "_clone_nodes_into_partitions",
                "_build_stitching_graph",
            ),
        ),
        (
            "torch.export.unflatten",
            "fxpress.unflatten",
            (
                "unflatten",
                "UnflattenedModule",
                "InterpreterModule",
                "InterpreterModuleDispatcher",
                "_SubmoduleBase",
                "_disable_interpreter",
                "_assign_attr",
                "_inplace_buffer_and_input_mutations",
                "_root_module_type",
                "_fix_nn_module_stacks",
                "_is_prefix",
                "_compute_accessor",
                "_check_graph_equivalence",
                "_add_spec",
                "_generate_flatten",
                "_generate_flatten_spec",
                "_generate_unflatten",
                "_get_submodule",
                "_add_submodule",
                "_call_name",
                "_is_call_name",
                "_ModuleFrame",
                "_SubmoduleEntry",
                "_outline_submodules",
                "_reorder_submodules",
                "_IVals",
                "_copy_graph_attrs",
                "_deduplicate_modules",
                "_sink_params",
            ),
        ),
        (
            "torch._export.serde.serialize",
            "fxpress.serialize",
            (
                "serialize",
                "deserialize",
                "canonicalize",
                "_canonicalize_graph",
                "ExportedProgramSerializer",
                "ExportedProgramDeserializer",
                "GraphModuleSerializer",
                "GraphModuleDeserializer",
                "LazyMap",
                "GraphState",
                "register_extension",
                "_registered_extension_types",
                "_get_schema_from_target",
                "EnumEncoder",
                "_bytes_to_dataclass",
                "_dataclass_to_dict",
                "_dict_to_dataclass",
                "_resolve_schema_cls",
                "_to_json_bytes",
                "_int_to_sympy_int",
                "_print_sympy",
                "_sympy_int_to_int",
                "_reverse_map",
                "_symbol_index",
                "deserialize_device",
                "deserialize_scalar_type",
                "deserialize_size",
                "deserialize_storage_offset",
                "deserialize_stride",
                "serialize_range_constraints",
                "serialize_sym_bool",
                "serialize_sym_float",
                "serialize_sym_int",
                "serialize_tensor_meta",
                "serialize_torch_artifact",
                "deserialize_torch_artifact",
                "get_triton_kernel_and_cache_entry",
                "is_metadata_matched",
            ),
        ),
        (
            "torch._export.serde.dynamic_shapes",
            "fxpress.serialize",
            ("_dump_dynamic_shapes", "_load_dynamic_shapes"),
        ),
        (
            "torch._dynamo.guards",
            "fxpress._graphs.capture.guard_function",
            ("build_guard_function", "get_verbose_code_part"),
        ),
        (
            "torch._dynamo.functional_export",
            "fxpress.functional_export",
            (
                "_dynamo_graph_capture_for_export",
                "dynamo_graph_capture_for_export",
                "create_fx_graph_from_captured_output",
                "_suggest_or_raise_constraint_violation",
                "_normalize_shuffle_graph",
                "normalize_graph_module",
                "clean_export_root",
                "clean_export_root_string",
                "clean_nn_module_stack_and_source_fn",
                "post_process_error_msg",
                "ModuleToTrace",
                "DynamoGraphTransformer",
                "InputProcessor",
                "DynamoBytecodeFlatten",
                "DynamoBytecodeUnflatten",
                "_DynamoBytecodeCodeGen",
            ),
        ),
        (
            "torch._dynamo.variables.nn_module",
            "fxpress.nn_module",
            (
                "NNModuleVariable",
                "UnspecializedNNModuleVariable",
                "UnspecializedBuiltinNNModuleVariable",
                "FSDPManagedNNModuleVariable",
                "record_nn_module_stack",
                "initialize_lazy_module",
                "guard_to_detect_forward_monkeypatching",
            ),
        ),
        ("torch.export._unlift", "fxpress.export", ("_unlift_exported_program_lifted_states",)),
        ("torch.export._trace", "fxpress.export", ("_export_for_training",)),
        ("torch.fx.experimental.proxy_tensor", "fxpress.export", ("make_fx",)),
        (
            "torch.export.exported_program",
            "fxpress.decompose",
            (
                "_decompose_exported_program",
                "_override_composite_implicit_decomp",
                "_split_decomp_table_to_cia_and_python_decomp",
            ),
        ),
        (
            "torch._export.utils",
            "fxpress.decompose",
            ("_collect_all_valid_cia_ops", "_collect_all_valid_cia_ops_for_aten_namespace"),
        ),
        ("torch.export", "fxpress.archive", ("save", "load")),
        (
            "torch.export.pt2_archive._package",
            "fxpress.archive",
            (
                "PT2ArchiveReader",
                "PT2ArchiveWriter",
                "is_pt2_package",
                "load_pt2",
                "load_weights_to_pt2_contents",
                "package_pt2",
            ),
        ),
        ("torch._inductor.package.package", "fxpress._files.archive.compiled", ("load_package",)),
    )
    for name in names
]

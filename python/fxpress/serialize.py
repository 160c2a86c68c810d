"""Write programs as bytes and read them: stands in for `torch._export.serde.serialize`.

Native code writes a program directly from its graph, and reads a program directly into a graph,
without creating objects of torch's schema classes. For callers that need schema objects,
`ExportedProgramSerializer` creates the objects from the JSON text, and
`ExportedProgramDeserializer` reads the objects without JSON.
"""

from fxpress._torch.probes import component

with component("serialize"):
    from fxpress._files.serde.artifacts import _reduce_fake_tensor, deserialize_torch_artifact
    from fxpress._files.serde.artifacts import save_artifact as serialize_torch_artifact
    from fxpress._files.serde.dynamic_shapes import _dump_dynamic_shapes, _load_dynamic_shapes
    from fxpress._files.serde.facts import (
        _int_to_sympy_int,
        _print_sympy,
        _reverse_map,
        _symbol_index,
        _sympy_int_to_int,
        deserialize_device,
        deserialize_scalar_type,
        deserialize_size,
        deserialize_storage_offset,
        deserialize_stride,
        serialize_range_constraints,
        serialize_sym_bool,
        serialize_sym_float,
        serialize_sym_int,
        serialize_tensor_meta,
    )
    from fxpress._files.serde.graph_deserializer import GraphModuleDeserializer, LazyMap
    from fxpress._files.serde.graph_serializer import GraphModuleSerializer, GraphState
    from fxpress._files.serde.kernels import get_triton_kernel_and_cache_entry, is_metadata_matched
    from fxpress._files.serde.objects import (
        EnumEncoder,
        _bytes_to_dataclass,
        _canonicalize_graph,
        _dataclass_to_dict,
        _dict_to_dataclass,
        _resolve_schema_cls,
        _to_json_bytes,
        canonicalize,
    )
    from fxpress._files.serde.operators import (
        _get_schema_from_target,
        _registered_extension_types,
        register_extension,
    )
    from fxpress._files.serde.program import serialize
    from fxpress._files.serde.program_classes import (
        ExportedProgramDeserializer,
        ExportedProgramSerializer,
    )
    from fxpress._files.serde.reading import deserialize
    from fxpress._torch import serde as _compat
    from fxpress._torch.serde import ExtensionHandler, SerializedArtifact

# This is torch's class, so `except SerializeError` catches torch's errors. It also catches
# fxpress's errors, because `fxpress.SerializeError` is a subclass of torch's class.
SerializeError = _compat.TorchSerializeError
# The dicts below are torch's own: an entry that a caller adds takes effect in torch and in fxpress.
_TORCH_TO_SERIALIZE_DTYPE = _compat.SCALAR_TYPES
_SERIALIZE_TO_TORCH_DTYPE = _compat.DTYPES
_TORCH_TO_SERIALIZE_LAYOUT = _compat.LAYOUTS
_SERIALIZE_TO_TORCH_LAYOUT = _compat.LAYOUTS_BY_NUMBER
_TORCH_TO_SERIALIZE_MEMORY_FORMAT = _compat.MEMORY_FORMATS
_SERIALIZE_TO_TORCH_MEMORY_FORMAT = _compat.MEMORY_FORMATS_BY_NUMBER
_SYM_OPS = _compat.SYM_OPS
_serialization_registry = _compat.EXTENSIONS
_deserialization_registry = _compat.EXTENSION_NAMESPACES
_SerializedProgram = _compat.SerializedProgram
_reconstruct_fake_tensor = _compat.reconstruct_fake_tensor
Final = _compat.Final
MetaType = _compat.MetaType
DEFAULT_PICKLE_PROTOCOL = _compat.DEFAULT_PICKLE_PROTOCOL
ST_DELIMITER = _compat.ST_DELIMITER

__all__ = [
    "ExportedProgramDeserializer",
    "ExportedProgramSerializer",
    "ExtensionHandler",
    "GraphModuleDeserializer",
    "GraphModuleSerializer",
    "SerializeError",
    "SerializedArtifact",
    "canonicalize",
    "deserialize",
    "register_extension",
    "serialize",
]

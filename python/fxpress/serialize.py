"""Drop-in for `torch._export.serde.serialize`: what stands of it.

Programs are written natively, straight from the graph, without any object of torch's schema; such
objects are made of JSON, and JSON of them.
"""

from fxpress._serde.canonical import canonicalize
from fxpress._serde.dynamic_shapes import _dump_dynamic_shapes, _load_dynamic_shapes
from fxpress._serde.objects import (
    EnumEncoder,
    _bytes_to_dataclass,
    _dataclass_to_dict,
    _dict_to_dataclass,
    _resolve_schema_cls,
    _to_json_bytes,
)
from fxpress._serde.program import serialize
from fxpress._serde.reading import deserialize
from fxpress._torch_compat_serde import SerializedArtifact, SerializeError

__all__ = ["SerializeError", "SerializedArtifact", "canonicalize", "deserialize", "serialize"]

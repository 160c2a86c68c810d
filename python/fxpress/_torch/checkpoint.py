"""List torch's classes and functions in checkpoint files by name, without importing them."""

from __future__ import annotations

# Module -> its classes that may occur in the file `.metadata` of a checkpoint.
METADATA_CLASSES = {
    "torch.distributed.checkpoint.metadata": (
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex"),
        *("StorageMeta", "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
}
LAYOUT = ("torch.serialization", "_get_layout")
# The functions that build a tensor from (storage, offset, sizes, strides, ...).
TENSORS = (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor_v3"))
# The classes of storages -> the dtype of their elements.
STORAGES = {
    **{"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16"},
    **{"BFloat16Storage": "bfloat16", "BoolStorage": "bool", "ByteStorage": "uint8"},
    **{"CharStorage": "int8", "ShortStorage": "int16", "IntStorage": "int32"},
    **{"LongStorage": "int64", "ComplexFloatStorage": "complex64"},
    "ComplexDoubleStorage": "complex128",
}

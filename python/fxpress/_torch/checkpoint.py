"""torch's names in the files of its checkpoints. They are compared, and never looked up."""

from __future__ import annotations

# The classes that the file `.metadata` is made of, by module.
METADATA_CLASSES = {
    "torch.distributed.checkpoint.metadata": (
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex"),
        *("StorageMeta", "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
}
LAYOUT = ("torch.serialization", "_get_layout")
# The functions that make a tensor of (storage, offset, sizes, strides, ...).
TENSORS = (("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_tensor_v3"))

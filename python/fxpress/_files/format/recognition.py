"""Recognize files and folders that are not exported programs, and name libraries that read them."""

from __future__ import annotations

import errno
import io
import os
import stat
from collections.abc import Collection
from typing import NamedTuple

from fxpress._files.format import names

HEAD = 4096  # bytes at the start of a file that determine its format
MOST_HEADER_BYTES = 100_000_000  # safetensors' limit for the header of a file
_HDF5 = b"\x89HDF\r\n\x1a\n"
_OLD_TORCH = 0x1950A86A20F9469CFC6C.to_bytes(10, "little")  # near the start of old torch.save files
_LEGACY = "serialized_"  # the start of record names in files of torch < 2.9
_PICKLE_PROTOCOLS = (2, 3, 4, 5)  # protocols 0 and 1 do not have a distinct first byte
_OLD_PICKLES = b"(c]}"  # first opcodes of long pickles of protocols 0 and 1
_ONNX_FIELDS = b"\x12\x1a\x22\x28\x32\x3a\x42"  # protobuf tags that may follow an ONNX version


class Format(NamedTuple):
    """A format of files or folders that are not exported programs."""

    name: str  # with an article, such as "a pickle"
    reader: str = ""  # a library or function; "" if unknown

    def text(self, wanted: str = "an exported program") -> str:
        """Return the message for a file of this format where `wanted` was expected."""
        reads = f": {self.reader} reads it" if self.reader else ""
        return f"it is {self.name}, not {wanted}{reads}"


SAFETENSORS = Format("a safetensors file", "safetensors.torch.load_file")
STAGES = Format("a folder of stages", "fxpress.pipeline.load_stage")
CHECKPOINT = Format("a checkpoint of torch.distributed", "torch.distributed.checkpoint.load")
_TENSORS = Format("a folder of safetensors files", "fxpress.checkpoint.ArchiveReader")
_TORCH_SAVE = Format("a file of torch.save", "torch.load")
_PICKLE = Format("a pickle", "pickle.load, which may run any code,")
_ONNX = Format("an ONNX model", "onnx.load")
_CORE_ML = Format("a Core ML model", "coremltools")
_EXECUTORCH = Format("an ExecuTorch program", "ExecuTorch's runtime")
_MAGIC = (  # (offset, the bytes at this offset, format)
    (0, b"GGUF", Format("a GGUF file", "llama.cpp")),
    (4, b"ET1", _EXECUTORCH),
    (4, b"BP08", _EXECUTORCH),
    (4, b"FT01", Format("an ExecuTorch file of weights", "ExecuTorch's runtime")),
    (4, b"TFL3", Format("a TensorFlow Lite model", "TensorFlow Lite")),
    *((n, _HDF5, Format("an HDF5 file", "h5py.File")) for n in (0, 512, 1024, 2048)),
    (0, b"\x93NUMPY", Format("an array of NumPy", "numpy.load")),
    (0, b"version https://git-lfs.", Format("a pointer of Git LFS", "git lfs")),
    (257, b"ustar", Format("a tar file", "tar")),
    (0, b"\x1f\x8b", Format("a gzip file", "gzip")),
    (0, b"\xfd7zXZ\0", Format("an xz file", "xz")),
    (0, b"BZh", Format("a bzip2 file", "bzip2")),
    (0, b"\x28\xb5\x2f\xfd", Format("a Zstandard file", "zstd")),
    (0, b"PAR1", Format("a Parquet file", "pyarrow.parquet")),
    (0, b"\x7fELF", Format("a shared library or program", "the system's loader")),
)
# Names of records -> the format of a zip file that contains all these records.
_RECORDS = (
    (("constants.pkl", "data.pkl"), Format("a TorchScript module", "torch.jit.load")),
    (("data.pkl",), _TORCH_SAVE),
    ((".data/extern_modules",), Format("a package", "torch.package.PackageImporter")),
    (("config.json", "model.weights.h5"), Format("a Keras model", "keras.models.load_model")),
)
_AOTINDUCTOR = Format("a package of AOTInductor", "PyTorch's aoti_load_package")

_FOLDERS = {  # file -> the format of folders that contain it
    names.MANIFEST: STAGES,
    names.CHECKPOINT_METADATA: CHECKPOINT,
    names.TENSORS_INDEX: _TENSORS,
    names.TENSORS_ALONE: _TENSORS,
    "pytorch_model.bin": Format("a folder of transformers", "its from_pretrained"),
    "saved_model.pb": Format("a SavedModel", "tensorflow.saved_model.load"),
}


def format_of_bytes(head: bytes) -> Format | None:
    """Return the format of a file from its first `HEAD` bytes; None for a zip or unknown file."""
    if not head:
        return Format("an empty file")
    for offset, magic, found in _MAGIC:
        if head.startswith(magic, offset):
            return found
    if head[0] == 0x80 and head[1:2] and head[1] in _PICKLE_PROTOCOLS:
        return _TORCH_SAVE if _OLD_TORCH in head[:64] else _PICKLE
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= MOST_HEADER_BYTES:
        return SAFETENSORS
    is_onnx = head[0] == 8 and len(head) > 3 and 0 < head[1] < 0x40 and head[2] in _ONNX_FIELDS
    if is_onnx:  # field 2 is a string in an ONNX model, and a message in a Core ML model
        is_core_ml = head[2] == 0x12 and not head[4 : 4 + head[3]].decode("latin1").isprintable()
        return _CORE_ML if is_core_ml else _ONNX
    return _PICKLE if _is_old_pickle(head) else None


class _WithoutEscapes(io.BytesIO):
    """Replaces backslashes in lines, because pickletools would warn of unknown escapes."""

    def readline(self, size: int | None = -1, /) -> bytes:
        return super().readline(size).replace(b"\\", b"/")


def _is_old_pickle(head: bytes) -> bool:
    """Return whether the bytes are a pickle of protocol 0 or 1, or the first opcodes of one."""
    import pickletools  # imported only when an error needs it

    file = _WithoutEscapes(head)
    try:
        for _ in pickletools.genops(file):
            pass
    except ValueError:
        return len(head) >= HEAD == file.tell() and head[0] in _OLD_PICKLES
    return file.tell() == len(head)


def format_of_records(records: Collection[str]) -> Format | None:
    """Return the format of a zip file from its record names; None if it contains a program."""
    if any(name.startswith(names.AOTINDUCTOR_DIR) for name in records):
        return None if names.models_in(records) else _AOTINDUCTOR
    own = (names.ARCHIVE_FORMAT_PATH, names.ARCHIVE_VERSION_PATH)
    if any(name in own or name.startswith((names.MODELS_DIR, _LEGACY)) for name in records):
        return None
    for wanted, found in _RECORDS:
        if all(name in records for name in wanted):
            return found
    if records and all(name.endswith(".npy") for name in records):
        return Format("a file of arrays of NumPy", "numpy.load")
    return Format("a zip file")


def format_of_folder(path: str | bytes | os.PathLike[str]) -> Format | None:
    """Return the format of a folder; None if it contains none of the known files."""
    for name, found in _FOLDERS.items():
        file = os.path.join(os.fsdecode(path), name)
        if os.path.isfile(file) and (found is not STAGES or _is_manifest(file)):
            return found
    return None


def _is_manifest(file: str) -> bool:
    """Return whether a `manifest.json` is the manifest of a folder of stages."""
    with open(file, "rb") as opened:
        return names.MANIFEST_FORMAT.encode() in opened.read(HEAD)


def open_file(path: str | bytes | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a file and return its descriptor; OSError also for a folder or a pipe."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            found = format_of_folder(path)
            what = "" if found is None else f": {found.name}, which {found.reader} reads"
            raise _error(errno.EISDIR, what, path)
        if not stat.S_ISREG(mode):
            raise _error(errno.EINVAL, ": expected a regular file", path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _error(number: int, what: str, path: str | bytes | os.PathLike[str]) -> OSError:
    return OSError(number, f"{os.strerror(number)}{what}", os.fsdecode(path))


def read_file(path: str | bytes | os.PathLike[str]) -> bytes:
    """Return the bytes of a file; raises the errors of `open_file`."""
    with open(path, "rb", opener=open_file) as file:
        return file.read()

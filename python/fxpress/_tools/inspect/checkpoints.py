"""Summarize a file or folder of weights: safetensors, stages, or a torch.distributed checkpoint."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

from fxpress._base.errors import Error
from fxpress._files.format import recognition
from fxpress._files.format.fields import objects_of
from fxpress._files.format.names import MANIFEST
from fxpress._files.format.package import InspectionError, memory_for
from fxpress._files.format.tensor_header import Place, header_length, read_header
from fxpress._files.format.tensors import Tensor


@dataclasses.dataclass
class Checkpoint:
    """The contents of a file or folder of weights."""

    path: str
    bytes: int  # the size of the file, or of all files in the folder
    kind: str  # such as "safetensors file"
    tensors: dict[str, Tensor]
    others: list[str]  # the names of values that are not tensors
    metadata: dict[str, str]  # the file's metadata
    stages: list[dict[str, Any]]  # for each stage: its file, bytes of weights, inputs and outputs

    def plain(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        tensors = [{"name": name, **each._asdict()} for name, each in self.tensors.items()]
        return {**vars(self), "tensors": tensors}


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Summarize a file or folder of weights from its headers only; None for other formats."""
    if path.is_dir():
        found = recognition.format_of_folder(path)
        if found in (recognition.STAGES, recognition.CHECKPOINT):
            size = sum(each.stat().st_size for each in path.iterdir() if each.is_file())
            return _stages(path, size) if found == recognition.STAGES else _torchs(path, size)
        return None
    with open(path, "rb", opener=recognition.open_file) as file:
        if recognition.format_of_bytes(file.read(recognition.HEAD)) != recognition.SAFETENSORS:
            return None
    try:
        metadata, places = read_tensor_header(path)
    except ValueError as error:
        text = str(error).replace(f"{path}: ", "", 1).replace(f"{path} ", "it ", 1)
        raise InspectionError(text) from None
    tensors = {
        name: Tensor(each.dtype, list(each.shape), each.size) for name, each in places.items()
    }
    texts = {str(key): str(text) for key, text in metadata.items()}
    return _made(
        path, path.stat().st_size, recognition.SAFETENSORS, tensors=tensors, metadata=texts
    )


def _made(path: Path, size: int, kind: recognition.Format, **held: Any) -> Checkpoint:
    empty: dict[str, Any] = {"tensors": {}, "others": [], "metadata": {}, "stages": []}
    return Checkpoint(os.fspath(path), size, kind.name.removeprefix("a "), **{**empty, **held})


def _stages(path: Path, size: int) -> Checkpoint:
    from fxpress._distributed.stages.manifest import read_manifest

    data = recognition.read_file(path / MANIFEST)
    try:
        manifest = read_manifest(data)
    except Error as error:
        raise InspectionError(str(error)) from error
    stages = [
        {
            "file": each.file,
            "bytes": each.bytes,
            "inputs": len(each.inputs),
            "outputs": len(each.outputs),
        }
        for each in manifest.stages
    ]
    return _made(path, size, recognition.STAGES, stages=stages)


def _torchs(path: Path, size: int) -> Checkpoint:
    from fxpress._distributed.checkpoint.torch_files import contents_of

    tensors, others = {}, []
    for name, form in contents_of(path, None).items():
        if form is None:
            others.append(name)
            continue
        dtype, sizes = form
        count = math.prod(sizes) * dtype.itemsize
        tensors[name] = Tensor(str(dtype).removeprefix("torch."), list(sizes), count)
    return _made(path, size, recognition.CHECKPOINT, tensors=tensors, others=others)


def read_tensor_header(path: Path) -> tuple[dict[str, Any], dict[str, Place]]:
    """Return metadata and tensor locations of a safetensors file; ValueError if it is damaged."""
    with open(path, "rb", opener=recognition.open_file) as file:
        whole = os.fstat(file.fileno()).st_size
        try:
            text = file.read(header_length(file.read(8), whole))
        except ValueError as e:
            raise ValueError(f"{path} is damaged: {e}") from None
    left = memory_for(whole)
    if objects_of(text, left) > left:
        raise ValueError(f"{path}: its header needs too much memory for a file of this size")
    try:
        return read_header(text, whole)
    except ValueError as e:
        raise ValueError(f"{path} is damaged: {e}") from None

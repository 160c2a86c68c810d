"""Recognize the format of the checkpoint at a path, and find its tensors."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fxpress._distributed.checkpoint import tensor_files
from fxpress._distributed.checkpoint.programs import ReaderOptions, add_program, add_stages
from fxpress._distributed.checkpoint.section import KEY, add_section
from fxpress._distributed.checkpoint.torch_files import METADATA, add_torch_checkpoint
from fxpress._distributed.checkpoint.weights import Weights
from fxpress._distributed.stages.save import MANIFEST
from fxpress._files.errors import ArchiveError
from fxpress._files.remote.remote_file import AnyPath, UrlPath, read_path
from fxpress._files.serde.limits import Budget, Limits


def main_file(path: AnyPath) -> AnyPath:
    """Return a checkpoint folder's manifest, index or only file; return other paths unchanged."""
    if not _is_folder(path):
        return path
    for name in (MANIFEST, tensor_files.INDEX, tensor_files.ALONE):
        if (path / name).is_file():
            return path / name
    if (path / METADATA).is_file():
        raise ArchiveError(
            f"{path} is a checkpoint of torch: read it with "
            "torch.distributed.checkpoint.FileSystemReader, or convert it with "
            "fxpress.checkpoint.convert_weights"
        )
    raise FileNotFoundError(errno.ENOENT, "the folder does not contain a checkpoint", str(path))


def _is_folder(path: AnyPath) -> bool:
    """Return whether a path is a folder. For a URL, only its suffix is checked."""
    if isinstance(path, UrlPath):
        return not path.name.endswith((".pt2", ".json", tensor_files.SUFFIX))
    return path.is_dir()


def read_weights(path: AnyPath, options: ReaderOptions) -> Weights:
    """Return the tensors of a checkpoint: dtypes, sizes, and the locations of their bytes."""
    with _closed_on_error() as weights:
        if path.name == MANIFEST:
            add_stages(weights, path.parent, options)
        elif path.name.endswith(".json"):
            index, budget = _read_json(path, options.limits)
            if isinstance(index, dict) and KEY in index:
                add_section(weights, path, index[KEY], budget)
            else:
                tensor_files.add_by_index(weights, path, index, budget)
        elif path.name.endswith(tensor_files.SUFFIX):
            tensor_files.add_file(weights, path, Budget.of(options.limits, 0))
        else:
            add_program(weights, path, options)
    return weights


def read_any_weights(path: Path, options: ReaderOptions) -> Weights:
    """Return the tensors of a checkpoint of fxpress or of torch's FileSystemWriter."""
    if not (path / METADATA).is_file():
        return read_weights(main_file(path), options)
    with _closed_on_error() as weights:
        add_torch_checkpoint(weights, path, options.limits)
    return weights


@contextlib.contextmanager
def _closed_on_error() -> Iterator[Weights]:
    weights = Weights()
    try:
        yield weights
    except BaseException:
        weights.close()
        raise


def _read_json(path: AnyPath, limits: Limits | Budget | None) -> tuple[Any, Budget]:
    """Parse a JSON file; return its value and the budget. ArchiveError: the file is damaged."""
    text = read_path(path)
    budget = Budget.of(limits, len(text))
    try:
        return budget.load_json(text, str(path)), budget
    except ValueError as error:
        raise ArchiveError(f"{path} is damaged: {error}") from None

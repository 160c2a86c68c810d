"""Rename the files of all ranks into place, so that a checkpoint is complete or invisible."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fxpress._distributed.checkpoint.distribution import FILE
from fxpress._distributed.checkpoint.tensor_files import ALONE, INDEX
from fxpress._distributed.checkpoint.torch_files import METADATA
from fxpress._distributed.stages.save import MANIFEST
from fxpress._files.archive.files import AtomicFile, write_all
from fxpress._files.archive.folders import locked_folder, sync_folder
from fxpress._files.archive.tensor_file import number_of


def check_folder(folder: Path) -> None:
    """Raise FileExistsError if `folder` is a file, or has files of another checkpoint format."""
    others = [folder] if folder.exists() and not folder.is_dir() else []
    # If `model.safetensors` exists, transformers reads this file instead of the index.
    others += [folder / name for name in (ALONE, MANIFEST, METADATA)]
    for path in others:
        if path.exists():
            raise FileExistsError(
                errno.EEXIST,
                "the path exists, and is not part of this checkpoint",
                str(path),
            )


def complete(folder: Path, files: Mapping[str, str], index: Any) -> None:
    """Rename files (name -> temporary name) and the index into place; remove older saves' files."""
    written = AtomicFile(folder / INDEX)
    try:
        write_all(written.descriptor, memoryview(json.dumps(index, separators=(",", ":")).encode()))
        written.sync()
        with locked_folder(folder):
            _replace(folder, files, written)
            _remove_others(folder, set(files))
    finally:
        written.discard()


def _replace(folder: Path, files: Mapping[str, str], index: AtomicFile) -> None:
    try:
        for name, temporary in files.items():
            try:
                os.replace(folder / temporary, folder / name)
            except FileNotFoundError:
                raise FileNotFoundError(
                    errno.ENOENT,
                    "the file of a rank is missing; check that all ranks use the same folder",
                    str(folder / name),
                ) from None
        sync_folder(folder)
        index.move_into_place()
        sync_folder(folder)
    except BaseException:
        if not index.is_in_place():
            for name in files:
                with contextlib.suppress(OSError):
                    (folder / name).unlink()
        raise


def _remove_others(folder: Path, names: set[str]) -> None:
    """Remove the checkpoint files of older saves and killed processes: all except `names`."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            match = FILE.fullmatch(name)
            if match is not None and name not in names:
                number = number_of(folder / name)
                if number is not None and number.startswith(match[1]):
                    (folder / name).unlink()

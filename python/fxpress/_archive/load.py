"""`load` and `load_pt2`."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any

import torch
from torch.export import ExportedProgram

from fxpress import _native
from fxpress import _torch_compat_archive as torch_archive
from fxpress._archive import names
from fxpress._archive.contents import read_extra_files, read_parts
from fxpress._archive.errors import ArchiveError
from fxpress._archive.files import is_path
from fxpress._archive.legacy import read_legacy
from fxpress._archive.options import Options, check_location
from fxpress._archive.reader import PT2ArchiveReader
from fxpress._serde.values import Location

log = logging.getLogger("fxpress")


def _path_of(f: Any, mmap: bool) -> str | None:
    path = os.fspath(f) if is_path(f) else None
    if mmap and path is None:
        raise ValueError("mmap=True maps the file: f has to be a path")
    return path


def _check_format_version(archive: PT2ArchiveReader) -> None:
    version = archive.read_string(names.ARCHIVE_VERSION_PATH)
    if version != names.ARCHIVE_VERSION_VALUE:
        raise ArchiveError(
            f"Saved archive version {version} does not match our current archive version "
            f"{names.ARCHIVE_VERSION_VALUE}."
        )


def load(
    f: Any,
    *,
    extra_files: dict[str, Any] | None = None,
    expected_opset_version: dict[str, int] | None = None,
    map_location: Location = None,
    mmap: bool = False,
    load_weights: bool = True,
    allow_pickle: bool = False,
    check_crc: bool = True,
) -> ExportedProgram:
    """The program that `save` wrote, here or in torch.

    Nothing in the file is run, unless `allow_pickle` says so.

    Args:
        f: a path, an open file, or a buffer.
        extra_files: gets the texts that were saved with the program.
        expected_opset_version: is not compared, as in torch.
        map_location: the device that everything goes to, or a dict from the names of devices in
            the file to others; None: the devices that it was saved from.
        mmap: weights are read from the file when they are used, and checksums not at all; see
            `fxpress.archive.verify`. Writing to them does not change the file.
        load_weights: False: the state has tensors on the meta device, for
            `fxpress.state.load_into`.
        allow_pickle: objects that `torch.load(weights_only=True)` does not take are unpickled,
            which may run any code. Without it, example inputs that need it are left out with a
            warning.
        check_crc: whether records are compared with their checksums.

    Raises:
        OSError: the file cannot be read.
        fxpress.archive.ArchiveError: it is damaged; the message names the record.
        SerializeError: as `fxpress.serialize.deserialize`.
        KeyError: there is no program called "model".
        AssertionError: it is an archive of another kind.

    Stands in for `torch.export.load`.
    """
    check_location(map_location)
    path = _path_of(f, mmap)
    options = Options(map_location, mmap, load_weights, allow_pickle, check_crc, path)
    extra = {} if extra_files is None else extra_files
    with PT2ArchiveReader.of_any_format(f, check_crc=check_crc) as archive:
        if archive.find(names.ARCHIVE_FORMAT_PATH) is None:
            return read_legacy(archive, extra, options)
        archive.check_format()
        _check_format_version(archive)
        extra.update(read_extra_files(archive))
        models = names.models_in(archive.get_file_names())
        if names.MODEL not in models:
            raise KeyError(names.MODEL)
        parts = read_parts(archive, names.MODEL, options)
    with _native.GcPause():  # nothing that is made here is garbage when it is done
        return parts.decode(options)


def load_pt2(
    f: Any,
    *,
    expected_opset_version: dict[str, int] | None = None,
    run_single_threaded: bool = False,
    num_runners: int = 1,
    device_index: int = -1,
    load_weights_from_disk: bool = False,
    map_location: Location = None,
    mmap: bool = False,
    load_weights: bool = True,
    allow_pickle: bool = False,
    check_crc: bool = True,
) -> Any:
    """All that an archive has: programs, what AOTInductor compiled, and extra files.

    Code that AOTInductor compiled is loaded into the process, by torch.

    Args:
        f: a path, an open file, or a buffer.
        expected_opset_version: is not compared, as in torch.
        run_single_threaded: compiled code runs without synchronization of threads.
        num_runners: of compiled code.
        device_index: where compiled code runs; -1: the current device.
        load_weights_from_disk: compiled code gets the weights in the archive.
        map_location, mmap, load_weights, allow_pickle, check_crc: see `load`.

    Raises:
        OSError, ArchiveError, SerializeError: see `load`.

    Stands in for `torch.export.pt2_archive._package.load_pt2`.
    """
    check_location(map_location)
    path = _path_of(f, mmap)
    options = Options(map_location, mmap, load_weights, allow_pickle, check_crc, path)
    is_file = isinstance(f, (io.IOBase, IO)) and f.readable() and f.seekable()
    if not (is_file or (path is not None and path.endswith(".pt2"))):
        log.warning("f should be a buffer or a file ending in .pt2. Got {%s}", f)
    with PT2ArchiveReader(f, check_crc=check_crc) as archive:
        _check_format_version(archive)
        records = archive.get_file_names()
        parts = {model: read_parts(archive, model, options) for model in names.models_in(records)}
        with _native.GcPause():
            programs = {model: each.decode(options) for model, each in parts.items()}
        extra_files = read_extra_files(archive)
        compiled = _compiled_models(records)
        weights = _compiled_weights(archive, compiled) if load_weights_from_disk else {}
        runners = {}
        if compiled:
            with _named_file(archive, path) as name:
                runners = {
                    model: torch_archive.load_compiled_model(
                        *(name, model, run_single_threaded, num_runners, device_index)
                    )
                    for model in compiled
                }
    contents = torch_archive.contents_class()(programs, runners, extra_files)
    load_weights_to_pt2_contents(contents, weights)
    return contents


def _compiled_models(records: list[str]) -> list[str]:
    """The names of the models that AOTInductor compiled."""
    folder = names.AOTINDUCTOR_DIR
    inside = [record.removeprefix(folder) for record in records if record.startswith(folder)]
    return list(dict.fromkeys(name.partition("/")[0] for name in inside))


def _compiled_weights(archive: PT2ArchiveReader, models: list[str]) -> dict[str, dict[str, Any]]:
    """Model -> name -> tensor, for those whose weights are in the archive."""
    loaded: dict[str, torch.Tensor] = {}
    weights: dict[str, dict[str, Any]] = {}
    for model in models:
        record = f"{names.AOTINDUCTOR_DIR}{model}/weights_config.json"
        if archive.find(record) is None:
            continue
        weights[model] = {}
        for name, (file, *view) in json.loads(archive.read_string(record)).items():
            if file not in loaded:
                data = io.BytesIO(archive.read_bytes(names.WEIGHTS_DIR + file))
                loaded[file] = torch.load(data, weights_only=True)
            weights[model][name] = loaded[file].as_strided(*view)
    return weights


@contextlib.contextmanager
def _named_file(archive: PT2ArchiveReader, path: str | None) -> Iterator[str]:
    """The archive as a file with a name, which is what torch's loader of compiled code takes."""
    if path is not None:
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".pt2") as copy:
        archive.copy_to(copy)
        copy.flush()
        yield copy.name


def load_weights_to_pt2_contents(pt2_contents: Any, weights_map: dict[str, Any]) -> None:
    """Gives the compiled models in what `load_pt2` returned new weights.

    Args:
        weights_map: model -> name -> tensor, which the models share from then on.

    Raises:
        RuntimeError: there is no compiled model of that name.

    Stands in for `torch.export.pt2_archive._package.load_weights_to_pt2_contents`.
    """
    for model, weights in weights_map.items():
        if model not in pt2_contents.aoti_runners:
            raise RuntimeError(f"Model {model} not found in PT2 archive contents.")
        runner = pt2_contents.aoti_runners[model]
        runner.load_constants(weights, check_full_update=True, user_managed=True)

"""Load models that AOTInductor compiled. An archive contains them as shared libraries."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from typing import Any

import torch

from fxpress._files.archive.files import source_path
from fxpress._files.archive.reader import PT2ArchiveReader
from fxpress._files.errors import ArchiveError
from fxpress._files.format import names
from fxpress._files.serde import gate
from fxpress._files.serde.artifacts import load_any
from fxpress._files.serde.damage import damage_is_named
from fxpress._files.serde.values import Values
from fxpress._torch import archive as torch_archive
from fxpress._torch import serde as compat

_SHOWN = 3  # how many records an error names


def compiled_models(records: list[str]) -> list[str]:
    """Return the names of the models that AOTInductor compiled."""
    folder = names.AOTINDUCTOR_DIR
    inside = [record.removeprefix(folder) for record in records if record.startswith(folder)]
    models = list(dict.fromkeys(name.partition("/")[0] for name in inside))
    for model in models:
        gate.check("RecordName", model, "the name of a compiled model", ArchiveError)
    return models


def refuse(records: list[str]) -> None:
    """Raise SerializeError for an archive that contains compiled code."""
    found = [record for record in records if record.startswith(names.AOTINDUCTOR_DIR)]
    if not found:
        return
    libraries = [record for record in found if record.endswith(".so")] or found
    more = f" and {len(libraries) - _SHOWN} more" if len(libraries) > _SHOWN else ""
    raise compat.SerializeError(
        f"the archive has compiled code, of the models {compiled_models(records)}: "
        f"{', '.join(map(repr, libraries[:_SHOWN]))}{more}. Loading it may run any "
        "code; pass allow_compiled=True to permit that."
    )


@damage_is_named("the weights of compiled code", ArchiveError)
def compiled_weights(archive: PT2ArchiveReader, models: list[str]) -> dict[str, dict[str, Any]]:
    """Return a dict: model -> name -> tensor, for the models whose weights are in the archive."""
    loaded: dict[str, torch.Tensor] = {}
    weights: dict[str, dict[str, Any]] = {}
    for model in models:
        record = f"{names.AOTINDUCTOR_DIR}{model}/weights_config.json"
        if archive.find(record) is None:
            continue
        weights[model] = {}
        views = archive.budget.load_json(archive.read_bytes(record), f"record {record!r}")
        values = Values({}, budget=archive.budget)
        for name, (file, *view) in views.items():
            if file not in loaded:
                data = archive.read_bytes(names.WEIGHTS_DIR + file)
                loaded[file] = load_any(data, f"record {file!r}", values)
            weights[model][name] = loaded[file].as_strided(*view)
    return weights


@contextlib.contextmanager
def named_file(archive: PT2ArchiveReader, path: str | None) -> Iterator[str]:
    """Yield `path`; if it is None, yield the path of a temporary copy of the archive."""
    if path is not None:
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".pt2") as copy:
        archive.copy_to(copy)
        copy.flush()
        yield copy.name


def load_package(
    path: Any,
    model_name: str = "model",
    run_single_threaded: bool = False,
    num_runners: int = 1,
    device_index: int = -1,
    use_stream_affinity: bool = False,
) -> Any:
    """Return a model that AOTInductor compiled. torch loads its code into the process.

    Loading compiled code may run any code. The function does not read the programs in the archive.

    Args:
        path: a path, an open file or a buffer: an archive, or a package that an older torch wrote.
        model_name: the name of the model in the archive.
        run_single_threaded, num_runners, device_index, use_stream_affinity: see
            `fxpress.archive.load_pt2`.

    Raises:
        OSError: the file cannot be read.
        fxpress.archive.ArchiveError: the file is damaged, or is not an archive.
        fxpress.UnsupportedError: this torch does not support `use_stream_affinity`.
        RuntimeError: the file does not contain the model, or torch cannot load the model.

    Stands in for `torch._inductor.package.package.load_package`, which
    `torch._inductor.aoti_load_package` calls.
    """
    with PT2ArchiveReader.of_any_format(path) as archive:
        is_older = archive.find(names.ARCHIVE_FORMAT_PATH) is None
        if not is_older and model_name not in compiled_models(archive.get_file_names()):
            raise RuntimeError(f"Model {model_name} not found in package")
        with named_file(archive, source_path(path)) as name:
            return torch_archive.load_compiled_model(
                name,
                model_name,
                run_single_threaded,
                num_runners,
                device_index,
                use_stream_affinity=use_stream_affinity,
            )

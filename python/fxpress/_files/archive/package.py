"""Write programs into an archive."""

from __future__ import annotations

import inspect
import io
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from typing import IO, Any, Literal, TypeAlias, get_args

import torch
from torch.export import ExportedProgram

from fxpress._base import arguments
from fxpress._base.observing.progress import Progress, check_progress, reporting
from fxpress._files.archive import payloads, weight_files
from fxpress._files.archive.files import is_path, sizes_of_file
from fxpress._files.archive.writer import PT2ArchiveWriter, Replace
from fxpress._files.format import names
from fxpress._files.serde.artifacts import check_program_values, save_artifact
from fxpress._files.serde.body_constants import lift_body_constants
from fxpress._files.serde.program import encode
from fxpress._torch import archive as torch_archive
from fxpress._torch import serde as compat
from fxpress._torch.aten import storage_bytes
from fxpress._torch.watching import operation, phase

log = logging.getLogger("fxpress")

Weights: TypeAlias = Literal["inline", "safetensors", "none"]


def _check_target(f: Any) -> None:
    """Log a warning, as torch does, for a target that a later version of torch may reject."""
    is_buffer = isinstance(f, (io.IOBase, IO)) and f.writable() and f.seekable()
    is_named = isinstance(f, str) and f.endswith(".pt2")
    is_temporary = isinstance(f, tempfile._TemporaryFileWrapper) and str(f.name).endswith(".pt2")
    if not (is_buffer or is_named or is_temporary):
        log.warning("Expect archive file to be a file ending in .pt2, or is a buffer. Got {%s}", f)


def _write_program(
    archive: PT2ArchiveWriter,
    model: str,
    program: ExportedProgram,
    opset_version: dict[str, int] | None,
    pickle_protocol: int,
    weights: str | None,
) -> None:
    """Write a program, and also its weights if `weights` is None.

    If `weights` is a str, write it as the record that names the file of weights; "" for no file.
    """
    program = lift_body_constants(program)
    check_program_values(program, with_state=weights is None)
    with compat.module_inputs(program.example_inputs):
        with phase("graph"):
            text, constants = encode(program, opset_version)
        with phase("example inputs"):
            examples = save_artifact(program.example_inputs, pickle_protocol)
    for name, constant in program.constants.items():
        if name in constants:
            raise AssertionError(f"constant name {name!r} already exists in constants")
        constants[name] = constant
    if weights is None:
        with phase("writing weights"):
            config = payloads.write_weights(archive, program.state_dict, pickle_protocol)
    else:
        config = weight_files.describe(program.state_dict)
        archive.write_string(names.weights_file_record(model), weights)
    archive.write_bytes(names.weights_config_record(model), payloads.config_bytes(config))
    with phase("writing constants"):
        fixed = payloads.write_constants(archive, constants, pickle_protocol)
    archive.write_bytes(names.constants_config_record(model), payloads.config_bytes(fixed))
    if shared := payloads.shared_storages(config, fixed):
        archive.write_string(names.shared_storages_record(model), shared)
    archive.write_bytes(names.model_record(model), text)
    archive.write_bytes(names.sample_inputs_record(model), examples)


def _write_aoti_files(archive: PT2ArchiveWriter, aoti_files: Any, pickle_protocol: int) -> None:
    """Write the files that AOTInductor created, and the weights that these files lack."""
    if isinstance(aoti_files, list):
        aoti_files = {names.MODEL: aoti_files}
    if not isinstance(aoti_files, dict):
        raise AssertionError(f"Expected aoti_files to be a dict, but got {type(aoti_files)}")
    weights: dict[str, Any] = {}
    for model, files in aoti_files.items():
        for file in files:
            if isinstance(file, torch_archive.Weights):
                weights[model] = file
            elif file != "":
                name = os.path.basename(file)
                is_object = name.startswith(names.CUSTOM_OBJECT)
                folder = names.CONSTANTS_DIR if is_object else f"{names.AOTINDUCTOR_DIR}{model}/"
                archive.write_file(folder + name, file)
    if not weights:
        return
    views: dict[str, dict[str, Any]] = {model: {} for model in aoti_files}
    for number, group in enumerate(torch_archive.group_weights(weights)):
        record = names.payload(names.WEIGHT, number)
        buffer = io.BytesIO()
        complete = torch_archive.get_complete_tensor(group, weights)
        torch.save(complete, buffer, pickle_protocol=pickle_protocol)
        archive.write_bytes(names.WEIGHTS_DIR + record, buffer.getvalue())
        for model, name in group:
            about = weights[model][name][1]
            views[model][name] = (record, about.shape, about.stride, about.offset)
    for model, config in views.items():
        record = f"{names.AOTINDUCTOR_DIR}{model}/weights_config.json"
        archive.write_string(record, json.dumps(config))


def _write_external(
    archive: PT2ArchiveWriter, model: str, program: ExportedProgram, report: Any
) -> str:
    """Write weights to a sidecar file; return the text of the record that names the file."""
    if archive.target is None:
        raise ValueError(
            'weights="safetensors" writes a sidecar file: f must be the path of a regular file'
        )
    record, file = weight_files.write_external(archive.target, model, program.state_dict, report)
    archive.add_weights_file(file)
    return record


def _bytes_of(programs: Mapping[str, ExportedProgram]) -> int:
    """Return an estimate of the bytes of the programs' tensors, for progress."""
    return storage_bytes(
        [
            value
            for program in programs.values()
            for value in (*program.state_dict.values(), *program.constants.values())
            if isinstance(value, torch.Tensor)
        ]
    )


@operation("archive.package_pt2", lambda _, f, **__: sizes_of_file(f))
def package_pt2(
    f: Any,
    *,
    exported_programs: ExportedProgram | dict[str, ExportedProgram] | None = None,
    aoti_files: Any = None,
    extra_files: dict[str, Any] | None = None,
    opset_version: dict[str, int] | None = None,
    pickle_protocol: int = compat.DEFAULT_PICKLE_PROTOCOL,
    executorch_files: dict[str, bytes] | None = None,
    weights: Weights = "inline",
    replace: Replace = "whole",
    progress: Progress = None,
) -> Any:
    """Save programs, and files that other tools created from them, in one archive.

    If `f` is a path, the complete archive replaces the file there; if saving fails, the file stays
    unchanged. The folder must be writable. Hard links and open files keep the old archive. The new
    file has the permissions of the old file; if there was none, the defaults of `open(path, "wb")`.
    If several processes save to one path at a time, the last archive remains. A file object is
    written from its position on; an object of Python's module `io` is then rewound to the start.

    Args:
        f: a path, or an object with a method `write`.
        exported_programs: name -> program; a single program is named "model".
        aoti_files: model name -> list of files that AOTInductor created; a single list is for the
            model "model".
        extra_files: name -> text.
        opset_version: operator set -> version; "aten" is added if it is missing.
        pickle_protocol: the pickle protocol for example inputs and tensor subclasses.
        executorch_files: name -> bytes.
        weights: where weights are saved. "inline": in the archive. "safetensors": in a file next to
            it, which has a new name for each save; later saves remove it when no archive needs it.
            "none": nowhere. Only fxpress can load archives without inline weights.
        replace: how to replace the file at the path. "whole": by another file. "in_place": by
            writing the bytes of the complete archive into the file, so that hard links and open
            handles get the new bytes. A read during the copy returns a mixture of both archives. If
            the process or the machine stops during the copy, both archives are lost.
        progress: how to show progress, in bytes; see `fxpress.load`.

    Returns:
        `f`; a path is converted to a str.

    Raises:
        AssertionError: there is nothing to save, or an argument is of a wrong type.
        OSError: the file cannot be written.
        fxpress.ArchiveError: the name or the text of an extra file is invalid.
        fxpress.SerializeError: a node or an object cannot be written; the message names it.
        fxpress.UnsupportedError: fxpress cannot write a part of a program.
        RuntimeError: a constant is of an unknown type, or the path does not name a file.
        TypeError: an argument is of a wrong type.
        ValueError: `weights`, `replace` or `pickle_protocol` has an unknown value; or `weights` is
            "safetensors" and `f` is not the path of a regular file; or `f` is a closed file; or a
            path has a null character.
        ImportError: `progress` needs a package that is not installed.

    Exceptions that a file object, `progress` or a pickled object raises are not converted.

    Stands in for `torch.export.pt2_archive._package.package_pt2`.

    Example:
        >>> from fxpress import archive
        >>> archive.package_pt2("two.pt2", exported_programs={"first": program, "second": program})
        'two.pt2'
    """
    if exported_programs is None and aoti_files is None and extra_files is None:
        raise AssertionError(
            "No value passed in for `exported_programs`, `aoti_files`, and `extra_files`, implying "
            "that you do not plan on saving anything."
        )
    if weights not in get_args(Weights):
        raise ValueError(f"expected weights to be one of {get_args(Weights)}, got {weights!r}")
    if weights == "safetensors" and not (is_path(f) and replace == "whole"):
        raise ValueError(
            'weights="safetensors" writes a sidecar file: f must be a path and replace="whole"'
        )
    if isinstance(exported_programs, ExportedProgram):
        exported_programs = {names.MODEL: exported_programs}
    programs = {} if exported_programs is None else exported_programs
    if not isinstance(programs, dict):
        raise AssertionError(f"Expected exported_programs to be a dict, but got {type(programs)}")
    for name, program in programs.items():
        arguments.check_program(program, f"exported_programs[{name!r}]")
    arguments.check_table(extra_files, "extra_files")
    arguments.check_table(executorch_files, "executorch_files")
    arguments.check_opset_version(opset_version)
    arguments.check_pickle_protocol(pickle_protocol)
    check_progress(progress)
    if is_path(f):
        f = os.fsdecode(f)
    _check_target(f)

    archive = PT2ArchiveWriter(f, replace=replace)
    try:
        total = _bytes_of(programs)
        with reporting(progress, "saving", total) as bar, archive.reporting_to(bar):
            for model, program in programs.items():
                sidecar = {"inline": None, "none": ""}.get(weights)
                if weights == "safetensors":
                    sidecar = _write_external(archive, model, program, bar)
                _write_program(archive, model, program, opset_version, pickle_protocol, sidecar)
            if aoti_files is not None:
                _write_aoti_files(archive, aoti_files, pickle_protocol)
            for name, content in (extra_files or {}).items():
                archive.write_string(f"{names.EXTRA_DIR}{name}", content)
            for name, data in (executorch_files or {}).items():
                archive.write_bytes(f"{names.EXECUTORCH_DIR}{name}", data)
        with phase("putting in place"):
            archive.complete()
    except BaseException:
        archive.abandon()
        raise
    if isinstance(f, (io.IOBase, IO)):
        f.seek(0)
    return f


@operation("save", lambda _, ep, f, **__: {"nodes": len(ep.graph.nodes), **sizes_of_file(f)})
def save(
    ep: ExportedProgram,
    f: Any,
    *,
    extra_files: dict[str, Any] | None = None,
    opset_version: dict[str, int] | None = None,
    pickle_protocol: int = compat.DEFAULT_PICKLE_PROTOCOL,
    weights: Weights = "inline",
    replace: Replace = "whole",
    progress: Progress = None,
) -> None:
    """Save a program in a file that `load` of fxpress or torch reads.

    A file at a path is replaced when the new one is complete, and is unchanged if saving fails. If
    another thread writes to a weight during the save, the file is valid, but the saved weight may
    mix old and new elements, as with torch. Clone the state first for consistent values.

    Args:
        ep: the program, which is not modified.
        f: a path, or an object with a method `write`. A file is written from its position on.
        extra_files: name -> text, saved with the program.
        opset_version: operator set -> version; "aten" is added if it is missing.
        pickle_protocol: the pickle protocol for example inputs and tensor subclasses.
        weights: where weights are saved. "inline": in the file. "safetensors": in another file next
            to it, with a new name for each save. "none": nowhere. torch only reads inline weights.
        replace: "whole": replace the file at the path by another; "in_place": write the complete
            new bytes into the file, so that hard links and open handles get the new bytes.
        progress: how to show progress, in bytes; see `fxpress.load`.

    Raises:
        TypeError: `ep` is not an ExportedProgram, or another argument is of a wrong type.
        OSError: the file cannot be written.
        fxpress.ArchiveError: the name or the text of an extra file is invalid.
        fxpress.SerializeError: a node or an object cannot be written; the message names it.
        fxpress.UnsupportedError: fxpress cannot write a part of the program.
        AssertionError: a constant and an object of the graph have the same name.
        RuntimeError: a constant is of an unknown type, or the path does not name a file.
        ValueError: `weights`, `replace` or `pickle_protocol` has an unknown value; or `weights` is
            "safetensors" and `f` is not the path of a regular file; or `f` is a closed file; or a
            path has a null character.
        ImportError: `progress` needs a package that is not installed.

    Exceptions that `progress` raises are not converted.

    Stands in for `torch.export.save`.

    Example:
        >>> fxpress.save(program, "model.pt2", extra_files={"notes.txt": "the first one"})
    """
    arguments.check_program(ep, "ep")
    # Call the function without its decorator, because `save` itself reports an operation.
    inspect.unwrap(package_pt2)(
        f,
        exported_programs={names.MODEL: ep},
        extra_files=extra_files,
        opset_version=opset_version,
        pickle_protocol=pickle_protocol,
        weights=weights,
        replace=replace,
        progress=progress,
    )

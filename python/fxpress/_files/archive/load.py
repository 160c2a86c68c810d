"""`load` and `load_pt2` read archives."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, MutableMapping
from typing import IO, Any

from torch.export import ExportedProgram

from fxpress import _native
from fxpress._base.observing.progress import Progress, check_progress
from fxpress._base.observing.text import bytes_text
from fxpress._files.archive import compiled
from fxpress._files.archive.contents import Parts, read_extra_files, read_parts
from fxpress._files.archive.files import sizes_of_file, source_path
from fxpress._files.archive.load_options import Options, check_location
from fxpress._files.archive.reader import PT2ArchiveReader, retry_if_replaced
from fxpress._files.errors import ArchiveError, FormatError, MissingProgramError
from fxpress._files.format import names
from fxpress._files.format.recognition import format_of_records
from fxpress._files.format.torch_facts import allowed_names
from fxpress._files.serde.limits import Limits
from fxpress._files.serde.values import Location
from fxpress._torch import archive as torch_archive
from fxpress._torch import serde as compat
from fxpress._torch.watching import operation

log = logging.getLogger("fxpress")
# Before torch 2.9: names of the records of state, constants and inputs; newest names first.
_LEGACY_PARTS = (
    ("serialized_state_dict.pt", "serialized_state_dict.json"),
    ("serialized_constants.pt", "serialized_constants.json"),
    ("serialized_example_inputs.pt",),
)
_EXTRA = "extra_files/"


def _check_format_version(archive: PT2ArchiveReader) -> None:
    version = archive.read_string(names.ARCHIVE_VERSION_PATH)
    if version != names.ARCHIVE_VERSION_VALUE:
        raise ArchiveError(
            f"Saved archive version {version} does not match our current archive version "
            f"{names.ARCHIVE_VERSION_VALUE}."
        )


@operation("load", lambda made, f, **_: {"nodes": len(made.graph.nodes), **sizes_of_file(f)})
@retry_if_replaced
def load(
    f: Any,
    *,
    extra_files: dict[str, Any] | None = None,
    expected_opset_version: dict[str, int] | None = None,
    map_location: Location = None,
    mmap: bool = False,
    load_weights: bool = True,
    allow_pickle: bool = False,
    allow_operators: Iterable[str] = (),
    check_crc: bool = True,
    limits: Limits | None = None,
    progress: Progress = None,
) -> ExportedProgram:
    """Return the program in a file that `fxpress.save` or `torch.export.save` wrote.

    The function does not run code from the file unless `allow_pickle` is true.

    Args:
        f: a path, an open file, or a buffer.
        extra_files: a dict to which the extra files in the archive are added: name -> text.
        expected_opset_version: ignored, as in torch.
        map_location: the device for all tensors, or a dict from devices in the file to new devices;
            None: the devices from which the tensors were saved.
        mmap: read weights from the file when they are used, without comparing checksums;
            `fxpress.archive.verify` compares them. Writing to the weights does not change the file.
            While a weight is live, do not modify the file in place, because that changes the
            weight, and truncating the file ends the process (SIGBUS). Replacing the file is safe.
        load_weights: if False, the tensors of the state are on the meta device;
            `fxpress.state.load_into` replaces them.
        allow_pickle: unpickle objects that `torch.load(weights_only=True)` rejects, which may run
            any code. Example inputs that cannot be read are left out with a warning.
        allow_operators: operators that this program may call although fxpress refuses them by
            default: names such as "aten.from_file", or namespaces such as "symm_mem".
            `fxpress inspect` lists the operators in a file that need this.
        check_crc: whether records are compared with their checksums.
        limits: the limits on the cost of reading; None: the defaults of `fxpress.archive.Limits`.
        progress: whether to show a bar (in bytes), or a function that is called with (done, total,
            what). None: show a bar after two seconds if stderr is a terminal and tqdm is installed.

    Raises:
        OSError: the file cannot be read.
        fxpress.ArchiveError: the file is damaged, or is not an archive; the message names the
            record. The error is also a KeyError if there is no program named "model", and an
            AssertionError for an archive of another format.
        MemoryError: the contents of the file need more memory than is available.
        fxpress.LimitError: reading the file would exceed the limits.
        fxpress.SerializeError: the program is damaged, names an operator or class that is not
            registered, or needs `allow_pickle` or `allow_operators`.
        fxpress.UnsupportedError: fxpress cannot read a part of the program, or tensors are on a
            device that this process cannot use.
        torch.OutOfMemoryError: a device does not have enough memory for the weights.
        TypeError: an argument is of a wrong type.
        ValueError: `f` is closed or has a null character, or `mmap` is set, but `f` is not a path.
        RuntimeError: torch does not know a device in `map_location`.
        ImportError: `progress` needs a package that is not installed.

    Exceptions that a file object raises are not converted.

    Stands in for `torch.export.load`.

    Example:
        >>> fxpress.save(program, "model.pt2")
        >>> fxpress.graph_hash(fxpress.load("model.pt2")) == fxpress.graph_hash(program)
        True
    """
    check_location(map_location)
    check_progress(progress)
    if extra_files is not None and not isinstance(extra_files, MutableMapping):
        raise TypeError(f"expected extra_files to be a dict, got a {type(extra_files).__name__}")
    path = source_path(f, mmap=mmap)
    allowed = allowed_names(allow_operators)
    options = Options(
        map_location, mmap, load_weights, allow_pickle, check_crc, path, progress, allowed
    )
    extra = {} if extra_files is None else extra_files
    with PT2ArchiveReader.of_any_format(f, check_crc=check_crc, limits=limits) as archive:
        if archive.find(names.ARCHIVE_FORMAT_PATH) is None:
            return read_legacy(archive, extra, options)
        archive.check_format()
        _check_format_version(archive)
        models = names.models_in(archive.get_file_names())
        if names.MODEL not in models:
            other = format_of_records(archive.get_file_names())
            lacks = f"the archive does not contain a program {names.MODEL!r}"
            raise MissingProgramError(lacks if other is None else other.text())
        parts = read_parts(archive, names.MODEL, options)
        extra.update(read_extra_files(archive))
    with _native.GcPause():  # all objects created here are live at the end
        return parts.decode(options)


@operation("archive.load_pt2", lambda _, f, **__: sizes_of_file(f))
@retry_if_replaced
def load_pt2(
    f: Any,
    *,
    expected_opset_version: dict[str, int] | None = None,
    run_single_threaded: bool = False,
    num_runners: int = 1,
    device_index: int = -1,
    load_weights_from_disk: bool = False,
    use_stream_affinity: bool = False,
    map_location: Location = None,
    mmap: bool = False,
    load_weights: bool = True,
    allow_pickle: bool = False,
    allow_operators: Iterable[str] = (),
    allow_compiled: bool = False,
    check_crc: bool = True,
    limits: Limits | None = None,
    progress: Progress = None,
) -> Any:
    """Return all contents of an archive: programs, models that AOTInductor compiled, extra files.

    The function does not run code from the file unless `allow_pickle` or `allow_compiled` is true.

    Args:
        f: a path, an open file, or a buffer.
        expected_opset_version: ignored, as in torch.
        run_single_threaded: run compiled code without synchronization of threads.
        num_runners: the number of runners of compiled code.
        device_index: the device of compiled code; -1: the current device.
        load_weights_from_disk: pass the weights in the archive to compiled code.
        use_stream_affinity: create a runner of compiled code for each stream of the device;
            UnsupportedError if the installed torch cannot do that.
        map_location: the device for all tensors, or a dict from devices in the file to new devices.
        mmap: read weights from the file when they are used, without checksums; see `fxpress.load`.
        load_weights: if False, the states of programs have tensors on the meta device.
        allow_pickle: unpickle objects that `torch.load(weights_only=True)` rejects, which may run
            any code.
        allow_operators: operators that the programs may call although fxpress refuses them by
            default: names such as "aten.from_file", or namespaces such as "symm_mem".
        check_crc: whether records are compared with their checksums.
        limits: the limits on the cost of reading; None: the defaults of `fxpress.archive.Limits`.
        allow_compiled: let torch load code that AOTInductor compiled, which may run any code. By
            default, an archive with compiled code raises SerializeError.
        progress: how to show progress, in bytes; see `fxpress.load`.

    Raises:
        OSError: the file cannot be read.
        fxpress.ArchiveError: the file is damaged, or is not an archive; also an AssertionError for
            an archive of another format.
        MemoryError: the contents of the file need more memory than is available.
        fxpress.LimitError: reading the file would exceed the limits.
        fxpress.UnsupportedError: fxpress cannot read a part of a program, tensors are on a device
            that this process cannot use, or this torch does not support `use_stream_affinity`.
        fxpress.SerializeError: a program is damaged, names an operator or class that is not
            registered, or needs `allow_pickle` or `allow_operators`; or the archive needs
            `allow_compiled`.
        torch.OutOfMemoryError: a device does not have enough memory for the weights.
        TypeError: an argument is of a wrong type.
        ValueError: `f` is closed or has a null character, or `mmap` is set, but `f` is not a path.
        RuntimeError: torch does not know a device, or cannot load the compiled code.
        ImportError: `progress` needs a package that is not installed.

    Stands in for `torch.export.pt2_archive._package.load_pt2`.

    Example:
        >>> from fxpress import archive
        >>> fxpress.save(program, "model.pt2", extra_files={"notes.txt": "the first one"})
        >>> contents = archive.load_pt2("model.pt2")
        >>> list(contents.exported_programs), contents.extra_files
        (['model'], {'notes.txt': 'the first one'})
    """
    check_location(map_location)
    check_progress(progress)
    path = source_path(f, mmap=mmap)
    allowed = allowed_names(allow_operators)
    options = Options(
        map_location, mmap, load_weights, allow_pickle, check_crc, path, progress, allowed
    )
    is_file = isinstance(f, (io.IOBase, IO)) and f.readable() and f.seekable()
    if not (is_file or (path is not None and path.endswith(".pt2"))):
        is_buffer = isinstance(f, (bytearray, memoryview))
        shown = f"a {type(f).__name__} of {bytes_text(memoryview(f).nbytes)}" if is_buffer else f
        log.warning("f should be a buffer or a file ending in .pt2. Got {%s}", shown)
    with PT2ArchiveReader(f, check_crc=check_crc, limits=limits) as archive:
        _check_format_version(archive)
        records = archive.get_file_names()
        if not allow_compiled:
            compiled.refuse(records)
        parts = {model: read_parts(archive, model, options) for model in names.models_in(records)}
        with _native.GcPause():
            programs = {model: each.decode(options) for model, each in parts.items()}
        extra_files = read_extra_files(archive)
        models = compiled.compiled_models(records)
        weights = compiled.compiled_weights(archive, models) if load_weights_from_disk else {}
        runners = {}
        if models:
            with compiled.named_file(archive, path) as name:
                runners = {
                    model: torch_archive.load_compiled_model(
                        name,
                        model,
                        run_single_threaded,
                        num_runners,
                        device_index,
                        use_stream_affinity=use_stream_affinity,
                    )
                    for model in models
                }
    contents = torch_archive.contents_class()(programs, runners, extra_files)
    load_weights_to_pt2_contents(contents, weights)
    return contents


def load_weights_to_pt2_contents(pt2_contents: Any, weights_map: dict[str, Any]) -> None:
    """Load new weights into the compiled models in a result of `load_pt2`.

    Args:
        pt2_contents: the result of `load_pt2` with `allow_compiled=True`.
        weights_map: model -> name -> tensor. The models use these tensors without a copy.

    Raises:
        RuntimeError: `pt2_contents` lacks a compiled model that `weights_map` names.

    Stands in for `torch.export.pt2_archive._package.load_weights_to_pt2_contents`.

    Example:
        >>> from fxpress import archive
        >>> fxpress.save(program, "model.pt2")
        >>> contents = archive.load_pt2("model.pt2")
        >>> archive.load_weights_to_pt2_contents(contents, {"model": program.state_dict})
        Traceback (most recent call last):
            ...
        RuntimeError: ...
    """
    for model, weights in weights_map.items():
        if model not in pt2_contents.aoti_runners:
            raise RuntimeError(f"Model {model} not found in PT2 archive contents.")
        runner = pt2_contents.aoti_runners[model]
        runner.load_constants(weights, check_full_update=True, user_managed=True)


def read_legacy(
    archive: PT2ArchiveReader, extra_files: dict[str, Any], options: Options
) -> ExportedProgram:
    """Return the program in a file of torch before 2.9; add the file's texts to `extra_files`."""
    other = format_of_records(archive.get_file_names())
    if other is not None:
        raise FormatError(other.text())
    if archive.find("version") is None:
        raise ArchiveError("the file is a zip archive, but not a program: its version is missing")
    log.warning("The file is of a format that is no longer written: save the program again.")
    version = archive.read_string("version").split(".")
    current = compat.schema.SCHEMA_VERSION
    if len(version) != len(current):
        raise FormatError(f"Version {version} in the saved file has incorrect length")
    if version[0] != str(current[0]):
        raise compat.SerializeError(
            f"Serialized version {version} does not match our current schema version {current}."
        )
    parts: list[bytes] = []
    for records in _LEGACY_PARTS:
        found = [record for record in records if archive.find(record) is not None]
        if not found:
            raise ArchiveError(f"record {records[0]!r} is missing")
        if found[0].endswith(".json"):
            log.warning("Record %r is of a format that is no longer written.", found[0])
        parts.append(archive.read_bytes(found[0]))
    record = names.LEGACY_PROGRAM
    state, constants, examples = parts
    text = archive.read_bytes(record)
    program = Parts(record, text, state, constants, examples, archive.budget)
    for name in archive.get_file_names():
        if name.startswith(_EXTRA):
            extra_files[name.removeprefix(_EXTRA)] = archive.read_string(name)
    with _native.GcPause():
        return program.decode(options)

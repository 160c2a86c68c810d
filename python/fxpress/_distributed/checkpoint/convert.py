"""Implement `convert_weights`: convert a checkpoint to another format, tensor by tensor."""

from __future__ import annotations

import contextlib
import io
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.export import ExportedProgram

from fxpress._base.observing.progress import Progress, check_progress, reporting
from fxpress._distributed.checkpoint.filling import Filling, fill
from fxpress._distributed.checkpoint.programs import ReaderOptions, stage_files
from fxpress._distributed.checkpoint.sources import main_file, read_any_weights, read_weights
from fxpress._distributed.checkpoint.streaming import save_all
from fxpress._distributed.checkpoint.weights import Weights
from fxpress._distributed.checkpoint.writer import ArchiveWriter
from fxpress._distributed.stages.costs import By
from fxpress._distributed.stages.manifest import facts_of_file, with_files
from fxpress._distributed.stages.save import MANIFEST, PICTURE, STATE, save_stages
from fxpress._files.archive.files import is_path, write_file
from fxpress._files.archive.folders import new_folder
from fxpress._files.archive.load import load
from fxpress._files.archive.package import save
from fxpress._files.format import names
from fxpress._files.remote.urls import machine_path
from fxpress._files.serde.limits import Limits
from fxpress._files.tensors.copies import on_other_storages
from fxpress._torch.watching import operation

Form: TypeAlias = Literal["pt2", "stages", "safetensors", "torch"]


@operation("checkpoint.convert_weights", lambda _, __, target, **___: _sizes(target))
def convert_weights(
    source: str | bytes | os.PathLike[str],
    target: str | bytes | os.PathLike[str],
    *,
    form: Form | None = None,
    program: ExportedProgram | str | bytes | os.PathLike[str] | None = None,
    stages: int | None = None,
    by: By = "parameters",
    missing: Literal["error", "program"] = "error",
    model: str = names.MODEL,
    file_bytes: int = 5_000_000_000,
    allow_pickle: bool = False,
    allow_operators: Iterable[str] = (),
    limits: Limits | None = None,
    progress: Progress = None,
) -> None:
    """Write the weights of a checkpoint as a checkpoint of another format.

    At any time, memory holds only one tensor, or one group of tensors that share memory. The target
    appears only when it is complete. Each tensor keeps its name from the source.

    Args:
        source: a path (not a URL) that `ArchiveReader` reads, or a folder that torch's
            FileSystemWriter wrote.
        target: the file or folder to create.
        form: the format of the target. "pt2": a file of `program` with the source's weights;
            "stages": a folder of stages with these weights, as `fxpress split` writes it;
            "safetensors": a folder of safetensors files and their index; "torch": a folder in the
            default format of `torch.distributed.checkpoint`. None: "stages" if `stages` is given or
            `program` is a folder, else "pt2" if the target ends in `.pt2`, else "safetensors".
        program: the program that gets the weights, for "pt2" and "stages": an ExportedProgram, a
            `.pt2` file with or without weights, or (only for "stages") a folder of stages.
        stages: the number of stages into which `program` is cut.
        by: the quantity to balance between the stages, as for `fxpress split`.
        missing: what to do for a weight of the program that the source lacks. "error": raise
            SerializeError; "program": use the weight's value in the program. For example, a source
            that is a folder of stages lacks a counter that no stage uses.
        model: the name of the program in a source that is a `.pt2` file.
        file_bytes: the maximum bytes of a file for "safetensors", unless one tensor is larger.
        allow_pickle: unpickle tensors of custom classes in the source, which may run any code.
        allow_operators: operators or namespaces that the file `program` may call if it is cut into
            stages; see `fxpress.load`.
        limits: the limits on the cost of reading; None: the defaults, see `fxpress.archive.Limits`.
        progress: how to report progress, in bytes: True, False or a function of (done, total,
            what); None: a bar on a terminal, after two seconds, when tqdm is installed.

    Raises:
        OSError: a file cannot be read or written; FileExistsError if the target folder is not
            empty. The form "safetensors" may replace a checkpoint that `ArchiveWriter` wrote.
        fxpress.ArchiveError: a file is damaged.
        fxpress.LimitError: reading would cost more than the limits allow.
        fxpress.SerializeError: the source lacks a weight of the program, or contains the weight
            with another shape or dtype; or two names of one weight in the program (a tied weight)
            have different values in the source.
        fxpress.UnsupportedError: the format of the target cannot store a tensor or a value of the
            source, or a path is a URL.
        fxpress.Error: the program cannot be cut in this way.
        TypeError: an argument is of a wrong type.
        ValueError: an argument is missing, has a value that is not listed here, or has no effect;
            or the source of a "pt2" or "stages" target contains a value that is not a tensor.
        ImportError: `progress` needs a package that is not installed.

    Exceptions that `progress` raises are not caught. torch has no such function.

    Example:
        >>> from fxpress.checkpoint import convert_weights
        >>> fxpress.save(program, "model.pt2")
        >>> convert_weights("model.pt2", "weights")  # safetensors and an index
        >>> convert_weights("weights", "two", program="model.pt2", stages=2)
        >>> convert_weights("two", "again.pt2", program="model.pt2")
    """
    for path in (source, target):
        if not is_path(path):
            raise TypeError(f"expected the path of a checkpoint, got a {type(path).__name__}")
    check_progress(progress)
    goal, origin = _local(target), _local(source)
    if is_path(program):
        program = _local(program)
    if missing not in ("error", "program"):
        raise ValueError(f'expected `missing` to be "error" or "program", got {missing!r}')
    kind = _form(form, goal, program, stages)
    _check_program(kind, program, stages)
    own = _own_weights(program, limits) if missing == "program" else None
    filling = Filling(own, limits)
    options = ReaderOptions(model, allow_pickle, limits)
    with (
        read_any_weights(origin, options) as weights,
        reporting(progress, "converting", weights.bytes()) as weights.report,
    ):
        if kind in ("pt2", "stages") and weights.values:
            name = next(iter(weights.values))
            raise ValueError(f"{name!r} is not a tensor: the form {kind!r} stores only tensors")
        goal.parent.mkdir(parents=True, exist_ok=True)
        if kind == "safetensors":
            _save_safetensors(weights, goal, file_bytes)
        elif kind == "torch":
            with new_folder(goal) as place:
                save_all(weights, FileSystemWriter(place, per_thread_copy_ahead=0))
        elif kind == "pt2":
            fill(_program_file(program), weights, goal, filling)
        else:
            loading = {"allow_operators": allow_operators, "limits": limits}
            with (
                new_folder(goal) as place,
                _stages(program, stages, by, place, loading) as template,
            ):
                _fill_stages(template, weights, place, filling)


def _save_safetensors(weights: Weights, folder: Path, file_bytes: int) -> None:
    """Save a checkpoint; after an error, remove the folder if it did not exist before."""
    is_new = not folder.exists()
    writer = ArchiveWriter(folder, file_bytes=file_bytes)
    try:
        save_all(weights, writer)
    except BaseException:
        writer.reset()
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _sizes(target: str | bytes | os.PathLike[str]) -> dict[str, int]:
    path = Path(os.fsdecode(target))
    files = [path] if path.is_file() else path.iterdir()
    return {"bytes": sum(each.stat().st_size for each in files)}


def _local(path: Any) -> Path:
    return Path(machine_path(path))


def _form(form: Form | None, target: Path, program: Any, stages: int | None) -> Form:
    if form is not None and form not in get_args(Form):
        raise ValueError(f"expected `form` to be one of {get_args(Form)}, got {form!r}")
    if form is not None:
        return form
    if stages is not None or (is_path(program) and os.path.isdir(program)):
        return "stages"
    return "pt2" if target.suffix == ".pt2" else "safetensors"


def _check_program(kind: Form, program: Any, stages: int | None) -> None:
    """Raise TypeError or ValueError for a `program` or `stages` that does not fit the form."""
    if not isinstance(program, ExportedProgram) and program is not None and not is_path(program):
        raise TypeError(
            f"expected program to be an ExportedProgram or a path, got a {type(program).__name__}"
        )
    if kind in ("safetensors", "torch"):
        if program is not None or stages is not None:
            raise ValueError(f"the form {kind!r} does not use a program or stages")
        return
    if program is None:
        raise ValueError(f"the form {kind!r} needs a program to write the weights into")
    is_folder = is_path(program) and os.path.isdir(program)
    if kind == "pt2" and (is_folder or stages is not None):
        raise ValueError("the form 'pt2' needs one program: pass no stages and no folder of stages")
    if kind == "stages" and is_folder == (stages is not None):
        raise ValueError(
            "the form 'stages' needs a program and a number of stages, or a folder of stages"
        )


def _own_weights(program: Any, limits: Limits | None) -> Callable[[str], torch.Tensor]:
    """Return a function that returns a weight by name, or raises KeyError for unknown names."""
    if isinstance(program, ExportedProgram):
        state = program.state_dict
        return lambda name: state[name]
    return read_weights(main_file(program), ReaderOptions(limits=limits)).read


def _program_file(program: ExportedProgram | Path) -> Path | io.BytesIO:
    """Return the program's file; for an ExportedProgram, a new file without its weights."""
    if not isinstance(program, ExportedProgram):
        return program
    file = io.BytesIO()
    save(program, file, weights="none", progress=False)
    return file


@contextlib.contextmanager
def _stages(
    program: Any, count: int | None, by: By, place: Path, loading: dict[str, Any]
) -> Iterator[Path]:
    """Yield a folder of stages: `program`, or a new folder in `place` if `count` is not None."""
    if count is None:
        yield program
        return
    if not isinstance(program, ExportedProgram):
        program = _with_zeros(load(program, load_weights=False, progress=False, **loading))
    path = place / "template"
    save_stages(program, path, count, by=by, inputs=program.example_inputs)
    yield path
    shutil.rmtree(path)


def _with_zeros(program: ExportedProgram) -> ExportedProgram:
    """Replace a program's weights by zeros, which use no memory until something writes to them."""

    def zeros(first: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_zeros(each.untyped_storage().nbytes()) for each in first]

    state = program.state_dict
    # The lambda keeps tensors of custom classes unchanged: unpickling has already set their values.
    made = on_other_storages(list(state.values()), zeros, lambda value: value)
    state.update(zip(state, made, strict=True))
    return program


def _zeros(size: int) -> torch.Tensor:
    if size == 0:
        return torch.zeros(0, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _fill_stages(template: Path, weights: Weights, folder: Path, filling: Filling) -> None:
    """Write the stages of `template` into `folder`, with the weights of a checkpoint."""
    files = []
    for file in stage_files(template, filling.limits):
        made = folder / file.path.name
        fill(template / file.path.name, weights, made, filling)
        files.append(facts_of_file(made))
    for name in (PICTURE, STATE):
        if (template / name).is_file():
            write_file(folder / name, (template / name).read_bytes())
    write_file(folder / MANIFEST, with_files((template / MANIFEST).read_bytes(), files))

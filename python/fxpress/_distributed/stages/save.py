"""Write the stages of a program to a folder or an archive, at a path or a URL."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torch.export import ExportedProgram

from fxpress._base.errors import UnsupportedError
from fxpress._base.observing.progress import Progress, check_progress
from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.build import build
from fxpress._distributed.stages.costs import By
from fxpress._distributed.stages.cut import Cut, cut
from fxpress._distributed.stages.documents import sealed
from fxpress._distributed.stages.manifest import facts_of_file, manifest_of, state_of_stages
from fxpress._distributed.stages.plan import check
from fxpress._distributed.stages.plan import plan as make_plan
from fxpress._distributed.stages.planned import Plan, picture_of
from fxpress._files.archive.files import write_file
from fxpress._files.archive.folders import new_folder
from fxpress._files.archive.package import package_pt2, save
from fxpress._files.format import names
from fxpress._files.remote import urls
from fxpress._files.serde.artifacts import check_program_values
from fxpress._torch.watching import operation

MANIFEST, STATE, PICTURE = names.MANIFEST, "state.json", "stages.svg"


def program_name(number: int) -> str:
    """Return the name of a stage's program in an archive of all stages."""
    return f"stage_{number}"


@operation("pipeline.save_stages", lambda made, *_, **__: {"stages": len(made["stages"])})
def save_stages(
    program: ExportedProgram,
    path: str | bytes | os.PathLike[str],
    plan: Plan | int,
    *,
    by: By = "parameters",
    inputs: Any = None,
    progress: Progress = None,
) -> dict[str, Any]:
    """Write a program for each stage, a manifest, and a picture. torch has no such function.

    Each rank reads `manifest.json`; `state.json` lists the state of each stage.

    The files appear together: they are written under a temporary name, and renamed when all are
    complete. A folder that is not empty is refused; an existing archive is replaced. If no renderer
    is installed, the picture is omitted.

    Args:
        program: the program, which is not changed.
        path: a folder to create, or an empty folder; an archive of all stages, whose name ends in
            ".pt2"; or the URL of a folder or an archive, such as `s3://bucket/stages`. For a URL,
            the files are first written to a temporary folder on this machine; the manifest of a
            folder is uploaded last. A killed process leaves its temporary folder `fxpress-stages-*`
            and the files that it has uploaded, which cannot be loaded without a manifest: remove
            both.
        plan: the result of `plan` for the program, or the number of stages to plan.
        by: the quantity to balance if `plan` is a number of stages: "parameters", "bytes", "flops",
            "time" or "module"; see the function `plan`.
        inputs: (args, kwargs) to measure times with.
        progress: how to report progress, in bytes of each stage: True, False or a function of
            (done, total, what); None: a bar on a terminal, after two seconds, when tqdm is
            installed.

    Returns:
        The contents of the manifest. "picture" is None if no renderer is installed. Each element of
        "stages" has the "guards" that this stage checks.
        "unchecked_guards" are the guards whose inputs no stage uses together; the first stage
        checks them, because it gets all inputs. Guards on values other than inputs are never
        checked, and only stages that `load_stage` returns check guards.

    Raises:
        StageError: the program cannot be cut into these stages, the plan is for another program or
            has a stage without operations, or the folder is not empty.
        OSError: a file cannot be written.
        fxpress.SerializeError, fxpress.UnsupportedError: a stage cannot be saved, or no installed
            package writes to the URL.

    Example:
        >>> from fxpress import pipeline
        >>> manifest = pipeline.save_stages(program, "saved", 2)
        >>> [stage["file"] for stage in manifest["stages"]]
        ['stage_0.pt2', 'stage_1.pt2']
    """
    check_progress(progress)
    check_program_values(program)
    url = urls.url_of(path)
    target = Path(urls.local_path(path))
    is_folder = target.suffix != ".pt2" if url is None else not urls.is_archive(url)
    if (
        url is None
        and is_folder
        and target.exists()
        and (not target.is_dir() or any(target.iterdir()))
    ):
        raise StageError(f"{target} exists already: pass a new path or an empty folder")
    if isinstance(plan, Plan):
        check(plan, program)
        chosen = plan
    else:
        chosen = make_plan(program, plan, by, inputs=inputs)
    stage_of = chosen.stage_of(program)
    whole = cut(program, stage_of)
    stages = [build(program, whole.ends, stage) for stage in whole.stages]
    drawn = picture_of(program, stage_of)
    describe = functools.partial(_describe, program, whole, chosen, drawn)
    write = functools.partial(_write_folder if is_folder else _write_archive, progress)
    placed = contextlib.nullcontext(target) if url is None else uploaded(url, MANIFEST)
    with placed as place:
        manifest: dict[str, Any] = write(place, stages, describe)
    return manifest


def _describe(
    program: ExportedProgram, whole: Cut, plan: Plan, drawn: str | None, files: list[dict[str, Any]]
) -> tuple[Any, dict[str, str]]:
    """Return the manifest, and {name: text} of all files but programs; the manifest is last."""
    picture = None if drawn is None else PICTURE
    manifest = sealed({**manifest_of(program, whole, plan, files), "picture": picture})
    texts = {} if drawn is None else {PICTURE: drawn}
    texts[STATE] = json.dumps(state_of_stages(program, whole)) + "\n"
    texts[MANIFEST] = json.dumps(manifest, indent=2) + "\n"
    return manifest, texts


def _write_archive(progress: Progress, target: Path, stages: Any, describe: Any) -> Any:
    programs = {program_name(number): stage for number, stage in enumerate(stages)}
    manifest, texts = describe([{"program": name} for name in programs])
    package_pt2(target, exported_programs=programs, extra_files=texts, progress=progress)
    return manifest


def _write_folder(progress: Progress, target: Path, stages: Any, describe: Any) -> Any:
    with new_folder(target) as place:
        files = []
        for number, stage in enumerate(stages):
            path = place / f"{program_name(number)}.pt2"
            save(stage, path, progress=progress)
            files.append(facts_of_file(path))
        manifest, texts = describe(files)
        for name, text in texts.items():
            write_file(place / name, text)
    return manifest


@contextlib.contextmanager
def uploaded(url: str, last: str) -> Iterator[Path]:
    """Yield a temporary path, then upload its files, ending with `last`; refuse an old folder."""
    if urlsplit(url).scheme in ("http", "https"):
        raise UnsupportedError(f"{urls.shown(url)}: stages cannot be written by HTTP")
    system, place = urls.opened_system(url)
    alone = urls.is_archive(url)
    if not alone and urls.reached(url, lambda: system.exists(place)):
        raise StageError(f"{urls.shown(url)} exists already: pass a new URL")
    with tempfile.TemporaryDirectory(prefix="fxpress-stages-") as folder:
        target = Path(folder) / (Path(urlsplit(url).path).name or "stages")
        yield target
        files = [target] if alone else sorted(target.iterdir(), key=lambda f: (f.name == last, f))
        with contextlib.ExitStack() as on_errors:
            for file in files:
                one = url if alone else urls.joined(url, file.name)
                to = place if alone else urls.opened_system(one)[1]
                urls.reached(one, functools.partial(system.put_file, str(file), to), repeats=False)
                on_errors.callback(_remove, one)
            on_errors.pop_all()


def _remove(url: str) -> None:
    system, place = urls.opened_system(url)
    with contextlib.suppress(OSError):
        urls.reached(url, lambda: system.rm_file(place), repeats=False)

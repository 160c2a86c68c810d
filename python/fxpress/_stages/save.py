"""Write the stages of a program into a folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from fxpress import archive
from fxpress._archive.folders import beside, sync_folder
from fxpress._stages.build import build
from fxpress._stages.costs import By
from fxpress._stages.cut import cut
from fxpress._stages.errors import StageError
from fxpress._stages.manifest import manifest_of
from fxpress._stages.picture import picture_of
from fxpress._stages.plan import check
from fxpress._stages.plan import plan as make_plan
from fxpress._stages.planned import Plan

MANIFEST, PICTURE = "manifest.json", "stages.svg"


def save_stages(
    program: ExportedProgram,
    folder: str | os.PathLike[str],
    plan: Plan | int,
    *,
    by: By = "parameters",
    inputs: Any = None,
) -> dict[str, Any]:
    """Write a program of each stage, a manifest, and a picture. torch has no such function.

    The folder is there as a whole or not at all: it is written under another name, and renamed. The
    picture is left out where it cannot be drawn.

    Args:
        program: the program, which is not changed.
        folder: the folder to make; it may be there if it is empty.
        plan: what `plan` has returned for the program, or the number of stages to plan.
        by: for a number of stages, what to share out: "parameters", "bytes", "flops", "time", or
            "module", see `plan`.
        inputs: (args, kwargs) to measure times with.

    Returns:
        What the manifest says. Its "picture" is None where the extra `draw` is missing.

    Raises:
        StageError: the program cannot be cut like this, the plan is for another program, or the
            folder is not empty.
        OSError: a file cannot be written.
        fxpress.SerializeError, fxpress.UnsupportedError: a stage cannot be saved.
    """
    target = Path(folder)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StageError(f"{target} is there already")
    if isinstance(plan, Plan):
        check(plan, program)
        chosen = plan
    else:
        chosen = make_plan(program, plan, by, inputs=inputs)
    stage_of = chosen.stage_of(program)
    whole = cut(program, stage_of)
    stages = [build(program, whole.ends, stage) for stage in whole.stages]
    drawn = picture_of(program, stage_of)
    with _made_at_once(target) as place:
        files = []
        for number, stage in enumerate(stages):
            path = place / f"stage_{number}.pt2"
            archive.save(stage, path)
            files.append({"file": path.name, "bytes": path.stat().st_size, "sha256": _sha256(path)})
        manifest = manifest_of(program, whole, chosen, files)
        manifest["picture"] = None if drawn is None else PICTURE
        if drawn is not None:
            (place / PICTURE).write_text(drawn)
        (place / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")
    return manifest  # type: ignore[no-any-return]


@contextlib.contextmanager
def _made_at_once(target: Path) -> Iterator[Path]:
    """Return a block that fills a folder, which has its name when the block has ended well."""
    place = beside(target)
    place.mkdir()
    try:
        yield place
        sync_folder(place)
        place.rename(target)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    sync_folder(target.parent)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        made = hashlib.sha256()
        while part := file.read(1 << 20):
            made.update(part)
    return made.hexdigest()

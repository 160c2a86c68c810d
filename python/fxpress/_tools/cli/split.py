"""`fxpress split`: write a program for each stage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text
from torch.export import ExportedProgram

from fxpress._base.observing.text import bytes_text, printable
from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.costs import By
from fxpress._distributed.stages.plan import plan
from fxpress._distributed.stages.profile import OperationTimes, measure_times
from fxpress._distributed.stages.save import MANIFEST, STATE, save_stages
from fxpress._files.archive.files import write_file
from fxpress._files.archive.load import load
from fxpress._files.format.recognition import read_file
from fxpress._tools.cli.inputs import example_inputs_of
from fxpress._tools.cli.loading import options_named
from fxpress._tools.cli.output import Allowed, console, naming, working


def split(
    source: Path,
    target: Path,
    *,
    stages: int,
    by: By,
    memory: int | None,
    slack: float,
    profile: Path | None,
    example_inputs: Path | None,
    allowed: Allowed,
    as_json: bool,
) -> None:
    """Read a program, and write the programs of its stages into a folder; see `app.split`."""
    with working(f"splitting {source}"):
        with naming(source), options_named(source):
            program = load(source, **allowed._asdict())
        inputs = program.example_inputs
        if example_inputs is not None:
            inputs = example_inputs_of(example_inputs, program, allowed.allow_pickle)
        try:
            times = None if profile is None else _profile(profile, program, inputs)
            chosen = plan(
                program, stages, by, memory=memory, inputs=inputs, profile=times, slack=slack
            )
            manifest = save_stages(program, target, chosen)
        except StageError as error:
            raise StageError(f"{source}: {printable(str(error))}") from error
    if as_json:
        print(json.dumps(manifest, indent=2))
        return
    out = console()
    out.print(_table(manifest))
    files = ", ".join(filter(None, (MANIFEST, STATE, manifest["picture"])))
    out.print(Text(printable(f"{target}: {stages} programs, {files}")), soft_wrap=True)
    if not manifest["picture"]:
        out.print(Text("no picture: install a renderer with pip install 'fxpress[draw]'"))


def _profile(path: Path, program: ExportedProgram, inputs: Any) -> OperationTimes:
    """Return the profile in a file; if there is no file, measure a profile and write it."""
    if path.exists():
        return OperationTimes.from_json(read_file(path).decode(errors="replace"))
    made = measure_times(program, inputs)
    write_file(path, made.to_json())
    return made


def _table(manifest: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "operations", "parameters", "bytes", "inputs", "outputs"):
        table.add_column(heading, justify="right" if heading else "left")
    for stage in manifest["stages"]:
        table.add_row(
            stage.get("file") or stage["program"],
            f"{stage['operations']:,}",
            f"{stage['parameters']:,}",
            bytes_text(stage["state_bytes"]),
            f"{len(stage['inputs']):,}",
            f"{len(stage['outputs']):,}",
        )
    return table

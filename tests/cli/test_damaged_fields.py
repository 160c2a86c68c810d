"""Each field of a program in turn has another type: commands report it in one line, or succeed."""

from __future__ import annotations

import contextlib
import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fxpress._files.format.package import InspectionError
from fxpress._tools.inspect.hashes import hash_programs
from fxpress._tools.inspect.nodes import find_nodes
from fxpress._tools.inspect.summary import summarize
from fxpress._tools.view.graphs import graphs_by_program
from fxpress._tools.view.overlays import overlays_of
from fxpress._tools.view.page import page_of
from fxpress._tools.view.sources import source_of_file
from tests.support.command_line import places_in
from tests.support.found import find_faults

SOME = 3  # of that many files pages are written, each with a picture
VALUES = (None, -1, 10**400, 1.5, "\ud800", ";", [], [1], {}, {"a": [1]}, True)
COMMANDS: dict[str, Callable[[Path], Any]] = {
    "inspect": lambda path: json.dumps(summarize(path).plain()),
    "node": lambda path: find_nodes(path, "linear"),
    "verify": find_faults,
    "hash": lambda path: hash_programs(path, include_state=True),
    "view": lambda path: json.dumps(overlays_of(graphs_by_program(path))),
}


@pytest.mark.parametrize("end", ["models/model.json", "weights_config.json"])
def test_damaged_fields(end: str, path: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    (name,) = (name for name in records if name.endswith(end))
    places = [place for place in places_in(json.loads(records[name])) if place]
    file = tmp_path / "edited.pt2"
    for number, place in enumerate(random.Random(1).sample(places, min(len(places), 250))):
        held = document = json.loads(records[name])
        for key in place[:-1]:
            held = held[key]
        held[place[-1]] = VALUES[number % len(VALUES)]
        with zipfile.ZipFile(file, "w") as edited:
            for record, data in records.items():
                edited.writestr(record, _text(document) if record == name else data)
        for command in COMMANDS.values():
            with contextlib.suppress(InspectionError):
                command(file)
        if number % SOME == 0:
            with contextlib.suppress(InspectionError):
                page_of([source_of_file(each, "a file") for each in (file, path)]).encode()


def _text(document: Any) -> bytes:
    text = json.dumps(document)
    return text.encode()

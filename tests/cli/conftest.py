"""A program in a file, and files that are edited."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

from tests.support.command_line import dynamic_program


@pytest.fixture(scope="package")
def program() -> ExportedProgram:
    return dynamic_program()


@pytest.fixture(scope="package")
def path(program: ExportedProgram, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "model.pt2"
    torch.export.save(program, path, extra_files={"notes.txt": "hello"})
    return path


@pytest.fixture
def edit(path: Path, tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def make(changes: dict[str, Any]) -> Path:
        target = tmp_path / "edited.pt2"
        with zipfile.ZipFile(path) as archive, zipfile.ZipFile(target, "w") as edited:
            for name in archive.namelist():
                change = next((c for end, c in changes.items() if name.endswith(end)), bytes)
                edited.writestr(name, change(archive.read(name)))
        return target

    return make

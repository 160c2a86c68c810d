"""Saving and loading programs with torch and with fxpress, in all four combinations."""

from __future__ import annotations

import io
import logging
import warnings
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

from fxpress import archive
from fxpress.archive import load, save
from tests.support.deserialized import assert_same_program
from tests.support.numbered import with_numbered_graphs


def records_of(data: bytes) -> dict[str, bytes]:
    """Record -> its bytes, read by Python's zipfile, which checks the checksums."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name: file.read(name) for name in file.namelist()}


def rewritten(data: bytes, changes: dict[str, bytes | None]) -> bytearray:
    """Return the zip file with some records replaced, or removed (None)."""
    records: dict[str, bytes | None] = {**records_of(data), **changes}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in records.items():
            if content is not None:
                file.writestr(name, content)
    return bytearray(buffer.getvalue())


def saved_by_torch(program: ExportedProgram, **options: Any) -> bytearray:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # weights that are parts of storages: Z-178
        torch.export.save(program, buffer, **options)
    return bytearray(buffer.getvalue())


def saved_by_us(program: ExportedProgram, **options: Any) -> bytearray:
    buffer = io.BytesIO()
    save(program, buffer, **options)
    assert buffer.tell() == 0
    return bytearray(buffer.getvalue())


def assert_same_records(ours: bytes, theirs: bytes) -> None:
    """Assert equal records in equal order, after numbering the ids of graphs; see `numbered`."""
    mine, other = records_of(ours), records_of(theirs)
    assert list(mine) == list(other)
    for name in mine:
        if name.endswith(".data/serialization_id"):
            continue  # depends on the checksum of the graph; equal graphs: test_archive_bytes
        wanted = with_numbered_graphs(other[name]) if name.endswith(".json") else other[name]
        assert mine[name] == wanted, name


def sharing(values: Mapping[str, Any]) -> list[list[str]]:
    """The names of tensors that share storages, group by group."""
    groups = defaultdict(list)
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel():
            groups[value.untyped_storage().data_ptr()].append(name)
    return list(groups.values())


def loaded_as_torch(data: bytes) -> ExportedProgram | None:
    """Assert that fxpress loads torch's program, and return it; None if neither can load it."""
    logging.disable(logging.WARNING)
    try:
        theirs = torch.export.load(io.BytesIO(data))
    except Exception:
        try:
            ours = load(io.BytesIO(data), allow_pickle=True)
        except archive.SerializeError:
            return None
        ours.validate()
        return ours
    finally:
        logging.disable(logging.NOTSET)
    ours = load(io.BytesIO(data), allow_pickle=True)
    assert_same_program(ours, theirs)
    assert sharing(ours.state_dict) == sharing(theirs.state_dict)
    assert sharing(ours.constants) == sharing(theirs.constants)
    return ours


def assert_archives_as_torch(program: ExportedProgram) -> None:
    """Assert that both write equal records, and read equal programs from both files.

    If torch cannot save, fxpress must raise an exception of the same type, or read its own file.
    """
    try:
        theirs = saved_by_torch(program)
    except Exception as error:
        expected = type(error)
        try:
            ours = saved_by_us(program)
        except expected:
            return
        load(io.BytesIO(ours), allow_pickle=True).validate()
        return
    ours = saved_by_us(program)
    assert_same_records(ours, theirs)
    archive.verify(io.BytesIO(theirs))
    for data in (ours, theirs):
        loaded_as_torch(data)


def raises_archive_error(data: bytes, match: str | None = None, **options: Any) -> None:
    """Loading raises an ArchiveError with this text."""
    with pytest.raises(archive.ArchiveError, match=match):
        load(io.BytesIO(data), **options)


class OneWeight(torch.nn.Module):
    """The smallest program with a state."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight

"""Tell by the directory of an archive whether a program in it is the one that was written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fxpress._files.archive.contents import read_config
from fxpress._files.archive.reader import PT2ArchiveReader
from fxpress._files.format import names


def records_of(archive: PT2ArchiveReader, model: str) -> Iterator[str]:
    """Yield the names of the records that a program is read from, its graph first.

    Raises:
        fxpress.ArchiveError: a record is missing or damaged.
    """
    yield names.model_record(model)
    yield names.sample_inputs_record(model)
    for config, folder in (
        (names.weights_config_record(model), names.WEIGHTS_DIR),
        (names.constants_config_record(model), names.CONSTANTS_DIR),
    ):
        yield config
        for payload in read_config(archive, config):
            yield folder + payload.record


def digest_of(archive: PT2ArchiveReader, records: Iterable[str]) -> str:
    """Return the SHA-256 of the names, sizes and checksums of records; their bytes are not read.

    Raises:
        fxpress.ArchiveError: a record is missing.
    """
    made = hashlib.sha256()
    for name in records:
        record = archive.record(name)
        made.update(f"{name}\0{record.size}\0{record.crc}\n".encode())
    return made.hexdigest()


def facts_of(path: Path) -> dict[str, Any]:
    """Return what a manifest says of the file of a stage.

    Raises:
        OSError, fxpress.ArchiveError: the file cannot be read.
    """
    with PT2ArchiveReader(path) as reader:
        records = digest_of(reader, records_of(reader, names.MODEL))
    whole = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            whole.update(part)
    return {
        "file": path.name,
        "bytes": path.stat().st_size,
        "sha256": whole.hexdigest(),
        "records": records,
    }

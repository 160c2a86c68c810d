"""Read the zip files that torch wrote before there were pt2 archives."""

from __future__ import annotations

import logging
from typing import Any

from torch.export import ExportedProgram

from fxpress import _native
from fxpress._files.archive.load_options import Options
from fxpress._files.archive.reader import PT2ArchiveReader
from fxpress._files.errors import ArchiveError, FormatError
from fxpress._files.serde.reading import check_version, decode
from fxpress._files.serde.schema import CLASSES, SCHEMA
from fxpress._torch import serde as compat

log = logging.getLogger("fxpress")

_PROGRAM = "serialized_exported_program.json"
# Names of a part, the newer one first.
_PARTS = {
    "state_dict": ("serialized_state_dict.pt", "serialized_state_dict.json"),
    "constants": ("serialized_constants.pt", "serialized_constants.json"),
    "example_inputs": ("serialized_example_inputs.pt",),
}
_EXTRA = "extra_files/"


def read_legacy(
    archive: PT2ArchiveReader,
    extra_files: dict[str, Any],
    options: Options,
) -> ExportedProgram:
    """Return the program in such a file. The file's extra files are added to `extra_files`."""
    if archive.find("version") is None:
        raise ArchiveError("the file is a zip archive, but no program: it has no version")
    log.warning("The file is of a format that is no longer written: save the program again.")
    version = archive.read_string("version").split(".")
    current = compat.schema.SCHEMA_VERSION
    if len(version) != len(current):
        raise FormatError(f"Version {version} in the saved file has incorrect length")
    if version[0] != str(current[0]):
        raise compat.SerializeError(
            f"Serialized version {version} does not match our current schema version {current}."
        )
    parts: dict[str, bytes] = {}
    for part, records in _PARTS.items():
        found = [record for record in records if archive.find(record) is not None]
        if not found:
            raise ArchiveError(f"record {records[0]!r} is missing")
        if found[0].endswith(".json"):
            log.warning("Record %r is of a format that is no longer written.", found[0])
        parts[part] = archive.read_bytes(found[0])
    program = archive.read_bytes(_PROGRAM)
    for name in archive.get_file_names():
        if name.startswith(_EXTRA):
            extra_files[name.removeprefix(_EXTRA)] = archive.read_string(name)
    with _native.GcPause():
        document = SCHEMA.read(program, "ExportedProgram", archive.budget.native)
        check_version(document.field(CLASSES, "schema_version"), False)
        return decode(
            *(document, parts["state_dict"], parts["constants"], parts["example_inputs"]),
            allow_pickle=options.allow_pickle,
            location=options.map_location,
            budget=archive.budget,
        )

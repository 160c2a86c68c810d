"""Summarize the contents of a file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

from fxpress._base.observing.text import bytes_text, html_table
from fxpress._files.format import names
from fxpress._files.format.fields import damage_is_named, expect_object, expect_str, parse
from fxpress._files.format.package import InspectionError, Package
from fxpress._files.format.recognition import format_of_records
from fxpress._files.format.stored import FOLDERS, config_record
from fxpress._files.format.tensors import size_of, tensor_of
from fxpress._tools.inspect.modules import Weight, lines_of
from fxpress._tools.inspect.program import Program, read_program

ARCHIVE = "pt2 archive"
_LONGEST_VERSION = 40  # the maximum characters of an archive's version
_CODE_SUFFIXES = (".so", ".o", ".cpp", ".cubin", ".ptx", ".hsaco", ".py", ".pte", ".wrapper")
_PICKLE_SUFFIXES = (".pt", ".pkl", ".pickle")
# The label of `Summary.runs` in reports.
UNOPENED = "pickles and code (a load runs none without permission)"


@dataclasses.dataclass
class Summary:
    """The contents of a file."""

    path: str
    bytes: int  # the size of the file
    kind: str  # such as "pt2 archive"
    format_version: str  # the version of an archive; empty for older files
    records: int  # the number of records
    programs: list[Program]  # the exported programs
    compiled: list[str]  # the names of compiled models (AOTInductor's)
    # Record with a pickle or with code, which `summarize` does not open -> "pickle" or "code".
    runs: dict[str, str]
    extra_files: dict[str, int]  # names and sizes in bytes of the files saved with the programs

    def _repr_html_(self) -> str:
        kind = f"{self.path}: {bytes_text(self.bytes)}, {self.kind}"
        rows = [
            (
                each.name,
                ", ".join(f"{value.name}: {value.type}" for value in each.inputs),
                ", ".join(f"{value.name}: {value.type}" for value in each.outputs),
                f"{sum(each.operators.values()):,}",
                f"{each.root.parameters:,}",
                bytes_text(each.root.bytes),
            )
            for each in self.programs
        ]
        head = ("program", "inputs", "outputs", "#operators", "#parameters", "#bytes")
        return html_table(kind, head, rows)

    def plain(self) -> dict[str, Any]:
        """Return the fields as JSON values; modules are a list, parents first."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**values, "programs": [_plain_program(each) for each in self.programs]}


def summarize(path: str | bytes | os.PathLike[str]) -> Summary:
    """Summarize a file without its weights and pickles; InspectionError if it is damaged."""
    with Package(path) as package:
        kind = kind_of(package)
        programs = list(_programs(package))
        records = package.records
        has_version = names.ARCHIVE_VERSION_PATH in records
        version = package.read(names.ARCHIVE_VERSION_PATH) if has_version else b""
        pickled = {w.record: "pickle" for p in programs for w in p.weights if w.is_pickled}
        return Summary(
            path=os.fsdecode(path),
            bytes=package.bytes,
            kind=kind,
            format_version=version[:_LONGEST_VERSION].decode(errors="replace").strip(),
            records=len(records),
            programs=programs,
            compiled=sorted(
                {n.split("/")[2] for n in records if n.startswith(names.AOTINDUCTOR_DIR)}
            ),
            runs={n: what for n in records if (what := pickled.get(n) or _runs(n))},
            extra_files={
                n.removeprefix(names.EXTRA_DIR): record.size
                for n, record in records.items()
                if n.startswith(names.EXTRA_DIR)
            },
        )


def kind_of(package: Package) -> str:
    """Return the format of a file; InspectionError if the file lacks exported programs."""
    if names.ARCHIVE_FORMAT_PATH in package.records:
        found, expected = package.read(names.ARCHIVE_FORMAT_PATH), names.ARCHIVE_FORMAT_VALUE
        if found != expected.encode():
            raise InspectionError(f"it is an archive of format {found[:20]!r}, not {expected!r}")
        return ARCHIVE
    if names.LEGACY_PROGRAM in package.records:
        return "exported program from before torch 2.9"
    other = format_of_records(package.records)
    raise InspectionError(
        "it is a zip file without an exported program" if other is None else other.text()
    )


def _plain_program(program: Program) -> dict[str, Any]:
    modules = [
        {key: value for key, value in vars(module).items() if key != "children"}
        for _, module in lines_of(program.root)
    ]
    weights = [{**vars(each), "tensor": each.tensor._asdict()} for each in program.weights]
    values = {key: value for key, value in vars(program).items() if key != "root"}
    ends = {key: [vars(each) for each in values[key]] for key in ("inputs", "outputs")}
    return {**values, **ends, "modules": modules, "weights": weights}


def _runs(record: str) -> str | None:
    """Return "code" or "pickle" for a record that contains code or a pickle, else None."""
    name = record.rpartition("/")[2]
    if record.endswith(_CODE_SUFFIXES):
        return "code"
    if record.endswith(_PICKLE_SUFFIXES) or name.startswith(names.OBJECTS):
        return "pickle"
    return None


def model_records(package: Package) -> list[tuple[str, str]]:
    """Return the name of each program in a file, and its record."""
    if names.ARCHIVE_FORMAT_PATH not in package.records:
        older = names.LEGACY_PROGRAM
        return [(names.MODEL, older)] if older in package.records else []
    return [(model, names.model_record(model)) for model in names.models_in(package.records)]


def _programs(package: Package) -> Iterator[Program]:
    for name, record in model_records(package):
        has_config = config_record(name, "weights") in package.records
        weights = [*_weights(package, "weights", name), *_weights(package, "constants", name)]
        document = parse(package.read(record), record, package)
        yield read_program(document, name, record, weights if has_config else None)


def _weights(package: Package, folder: str, model: str) -> Iterator[Weight]:
    record = config_record(model, folder)
    if record not in package.records:
        return
    with damage_is_named(f"record {record!r}"):
        entries = expect_object(parse(package.read(record), record, package)["config"])
    for name, entry in entries.items():
        with damage_is_named(f"record {record!r}: {name!r}"):
            if expect_object(entry).get("tensor_meta") is None:
                continue  # an object, which is listed as a pickle
            kind = "parameter" if entry["is_param"] else "buffer"
            yield Weight(
                name,
                kind if folder == "weights" else "constant",
                tensor_of(entry["tensor_meta"]),
                f"{FOLDERS[folder]}{expect_str(entry['path_name'])}",
                bool(entry["use_pickle"]),
                size_of(expect_object(entry["tensor_meta"])["storage_offset"]),
            )

"""Find everything that is wrong with a file, without torch: what `fxpress.load` would refuse."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from fxpress._inspection.arguments import bodies_in, values_in
from fxpress._inspection.fields import (
    a_list,
    a_text,
    an_int,
    an_object,
    damage_is_named,
    one_of,
    parse,
)
from fxpress._inspection.hashes import read_document
from fxpress._inspection.package import InspectionError, Package
from fxpress._inspection.program import read_program
from fxpress._inspection.summary import ARCHIVE, kind_of, model_records
from fxpress._inspection.tensors import DTYPES
from fxpress._inspection.views import View

_VERSION = ("archive_version", b"0")
_FOLDERS = ("weights", "constants")
_FILE_BESIDE = "_weights_file.txt"  # the record that names a file with the weights
_STATE = {
    "parameter": ("weights", "parameter_name"),
    "buffer": ("weights", "buffer_name"),
    "tensor_constant": ("constants", "tensor_constant_name"),
}


class Fault(NamedTuple):
    """Something that is wrong with a file.

    Attributes:
        record: the record that it is in; empty for the file as a whole.
        text: what is wrong.
    """

    record: str
    text: str


def find_faults(
    path: str | os.PathLike[str], report: Callable[[int], None] | None = None
) -> list[Fault]:
    """Return what is wrong with a file; nothing is unpickled and nothing of it runs.

    Every record is read and compared with its checksum. The texts of programs are compared with
    torch's schema; values are used after they are computed, and described; weights have records
    that are long enough.

    Args:
        path: the file.
        report: called with the bytes that were read since the last call.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with Package(path) as package:
            return list(_faults(package, report))
    except InspectionError as e:
        return [Fault("", str(e))]


def _faults(package: Package, report: Callable[[int], None] | None) -> Iterator[Fault]:
    damaged = package.damaged_records(report)
    yield from (Fault(record, text) for record, text in damaged.items())
    name, version = _VERSION
    if kind_of(package) == ARCHIVE and name not in damaged:
        found = package.read(name) if name in package.records else None
        if found is None:
            yield Fault(name, "the record is missing")
        elif found != version:
            yield Fault(name, f"the version is {found!r}, not {version!r}")
    for model, record in model_records(package):
        if record not in damaged:
            yield from _program_faults(package, model, record, set(damaged))


def _program_faults(
    package: Package, model: str, record: str, damaged: set[str]
) -> Iterator[Fault]:
    text = package.read(record)
    try:
        read_document(text, "ExportedProgram", record)
        document = parse(text, record)
        read_program(text, model, record, None)
    except InspectionError as e:
        yield Fault(record, _without_record(str(e), record))
        return
    wanted: dict[str, set[str]] = {folder: set() for folder in _FOLDERS}
    try:
        with damage_is_named(f"record {record!r}"):
            module = document["graph_module"]
            specs = module["signature"]["input_specs"]
            for kind, held in map(one_of, specs):
                if kind in _STATE:
                    folder, key = _STATE[kind]
                    is_constant = kind == "buffer" and not held["persistent"]
                    wanted["constants" if is_constant else folder].add(held[key])
        yield from (Fault(record, fault) for fault in _graph_faults(module["graph"], "graph"))
    except InspectionError as e:
        yield Fault(record, _without_record(str(e), record))
    for folder in _FOLDERS:
        config = f"data/{folder}/{model}_{folder}_config.json"
        if config in package.records and config not in damaged:
            yield from _weight_faults(package, config, folder, wanted[folder], damaged)


def _without_record(text: str, record: str) -> str:
    return text.removeprefix(f"record {record!r} is damaged: ").removeprefix(f"record {record!r}: ")


def _graph_faults(graph: Any, place: str) -> Iterator[str]:
    """Yield the uses of values that are not computed before, or not described."""
    with damage_is_named(place):
        tensors = an_object(graph["tensor_values"])
        nodes, outputs = a_list(graph["nodes"]), graph["outputs"]
        known = {name for _, name in values_in(graph["inputs"])}
    for number, node in enumerate(nodes):
        at = f"{place}.nodes[{number}]"
        with damage_is_named(at):
            for argument in node["inputs"]:
                for name in (name for _, name in values_in(argument["arg"]) if name not in known):
                    yield f"{at}: {a_text(node['target'])} takes {name!r}, which is not computed"
                for number_of_body, body in enumerate(bodies_in(argument["arg"])):
                    inside = f"{at}.{argument['name'] or 'body'}[{number_of_body}]"
                    yield from _graph_faults(body, inside)
            for is_tensor, name in values_in(node["outputs"]):
                if name in known:
                    yield f"{at}: {name!r} is computed twice"
                elif is_tensor and name not in tensors:
                    yield f"{at}: the tensor {name!r} is not described"
                known.add(name)
    with damage_is_named(f"{place}.outputs"):
        for _, name in values_in(outputs):
            if name not in known:
                yield f"{place}.outputs: {name!r} is not computed"


def _weight_faults(
    package: Package, config: str, folder: str, wanted: set[str], damaged: set[str]
) -> Iterator[Fault]:
    """Yield what is wrong with the tensors that a config describes."""
    is_elsewhere = any(
        name.startswith(f"data/{folder}/") and name.endswith(_FILE_BESIDE)
        for name in package.records
    )
    try:
        text = package.read(config)
        read_document(text, "PayloadConfig", config)
        entries = parse(text, config)["config"]
        missing = sorted(wanted - set(entries))
        yield from (Fault(config, f"{name!r} is missing") for name in missing)
        for name, entry in entries.items():
            record = f"data/{folder}/{entry['path_name']}"
            if record in damaged or is_elsewhere:
                continue
            with damage_is_named(f"{name!r}"):
                fault = _entry_fault(package, record, entry)
            if fault:
                yield Fault(config, f"{name!r}: {fault}")
    except InspectionError as e:
        yield Fault(config, _without_record(str(e), config))


def _entry_fault(package: Package, record: str, entry: dict[str, Any]) -> str:
    found = package.records.get(record)
    if found is None:
        return f"its record {record!r} is missing"
    meta = entry["tensor_meta"]
    if entry["use_pickle"] or meta is None or meta["dtype"] not in DTYPES:
        return ""
    sizes, strides = ([an_int(n["as_int"]) for n in meta[key]] for key in ("sizes", "strides"))
    start = an_int(meta["storage_offset"]["as_int"])
    view = View(DTYPES[meta["dtype"]][1], sizes, strides, start)
    if view.bytes > found.size:
        return f"it needs {view.bytes} bytes, but its record {record!r} has {found.size}"
    return ""

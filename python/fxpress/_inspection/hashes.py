"""Hash the programs of a file: the same hashes as `fxpress.graph_hash` of the loaded programs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from fxpress import _native
from fxpress._errors import Error
from fxpress._inspection.fields import an_int, an_object, damage_is_named, parse
from fxpress._inspection.package import InspectionError, Package
from fxpress._inspection.summary import model_records
from fxpress._inspection.tensors import DTYPES
from fxpress._inspection.torch_facts import operators, schema
from fxpress._inspection.views import View

_STRIDED = 7  # torch's number of the layout in files
_CONSTANTS = {"tensor_constant": "tensor_constant_name", "custom_obj": "custom_obj_name"}
_BUFFERS = {"buffer": "buffer_name"}


class UnknownOperatorError(InspectionError):
    """A program calls an operator that only its own library can tell about."""


class _Stored(NamedTuple):
    """A tensor in a record of its own, as its config describes it."""

    name: str
    record: str
    is_pickled: bool
    meta: dict[str, Any] | None


def hash_programs(
    path: str | os.PathLike[str], *, include_state: bool = False
) -> list[tuple[str, str]]:
    """Return name and hash of each program in a file.

    Args:
        path: the file.
        include_state: hash the values of parameters and buffers too.

    Raises:
        OSError: the file cannot be read.
        InspectionError: it is no file of exported programs, or it is damaged; or it has a constant
            that only torch can read.
        UnknownOperatorError: a program calls an operator that is not one of torch's own.
    """
    with Package(path) as package:
        found = model_records(package)
        if not found:
            raise InspectionError("a file without an exported program")
        return [(name, _hash(package, name, record, include_state).hex()) for name, record in found]


def _hash(package: Package, model: str, record: str, include_state: bool) -> bytes:
    text = package.read(record)
    document = read_document(text, "ExportedProgram", record)
    known = operators()
    unknown = [target for target in document.targets() if target not in known]
    if unknown:
        raise UnknownOperatorError(
            f"program {model!r} calls {unknown[0]!r}, of a library that fxpress does not know; "
            "load the file in Python and call fxpress.graph_hash"
        )
    traits = {target: known[target] for target in document.targets()}
    digests = dict(_digests(package, model, text, record, include_state))
    try:
        whole, _ = document.hash(traits, digests)
    except AssertionError as e:
        raise InspectionError(f"record {record!r} is damaged: {e}") from None
    return whole


def read_document(text: bytes, kind: str, record: str) -> _native.Document:
    """Return a record that holds JSON of a type of torch's schema.

    Raises:
        InspectionError: the text is not of that type.
    """
    try:
        return schema().read(text, kind)
    except (ValueError, Error) as e:  # Error: another part of this process has imported torch
        raise InspectionError(f"record {record!r} is damaged: {e}") from None


def _digests(
    package: Package, model: str, text: bytes, record: str, include_state: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield name and digest of each value that enters the hash of a program."""
    constants = {stored.name: stored for stored in _stored(package, model, "constants")}
    document = parse(text, record)
    with damage_is_named(f"record {record!r}: the signature"):
        specs = document["graph_module"]["signature"]["input_specs"]
        needed = {spec[k][key] for spec in specs for k, key in _CONSTANTS.items() if k in spec}
        buffers = {spec[k][key] for spec in specs for k, key in _BUFFERS.items() if k in spec}
    missing = needed - set(constants)
    if missing:
        raise InspectionError(
            f"the constant {min(missing)!r} is in a pickle, which only torch can read"
        )
    for name, stored in constants.items():
        if include_state or name not in buffers:
            yield name, _digest(package, stored)
    if include_state:
        if f"data/weights/{model}_weights_config.json" not in package.records:
            raise InspectionError("the weights are in a pickle, which only torch can read")
        for stored in _stored(package, model, "weights"):
            yield stored.name, _digest(package, stored)


def _stored(package: Package, model: str, folder: str) -> Iterator[_Stored]:
    record = f"data/{folder}/{model}_{folder}_config.json"
    if record not in package.records:
        return
    with damage_is_named(f"record {record!r}"):
        for name, entry in an_object(parse(package.read(record), record)["config"]).items():
            place = f"data/{folder}/{entry['path_name']}"
            yield _Stored(name, place, bool(entry["use_pickle"]), entry["tensor_meta"])


def _digest(package: Package, stored: _Stored) -> bytes:
    """Return the hash of a tensor: of its type, its sizes, and its items in order."""
    meta = stored.meta
    with damage_is_named(f"the tensor {stored.name!r}"):
        if meta is None or stored.is_pickled or meta["layout"] != _STRIDED:
            raise InspectionError(f"{stored.name!r} is of a kind that only torch can hash")
        if meta["device"]["type"] == "meta":
            raise InspectionError(f"{stored.name!r} has no values")
        dtype, itemsize = DTYPES[meta["dtype"]]
        sizes = tuple(an_int(size["as_int"]) for size in meta["sizes"])
        strides = [an_int(stride["as_int"]) for stride in meta["strides"]]
        start = an_int(meta["storage_offset"]["as_int"])
        view = View(itemsize, sizes, strides, start)
        made = hashlib.blake2b(f"(torch.{dtype}, {sizes}, torch.strided)".encode(), digest_size=32)
        for part in view.parts(package.read(stored.record)):
            made.update(part)
    return made.digest()

"""List the tensors of a program in an archive, and the records that contain their data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from fxpress._files.format import fields, names
from fxpress._files.format.package import Package
from fxpress._files.format.tensors import dtype_of

# Payload configs (torch's lists of a program's saved tensors) -> the prefix of their records.
FOLDERS = {"weights": names.WEIGHTS_DIR, "constants": names.CONSTANTS_DIR}


class _StateInput(NamedTuple):
    folder: str  # a key of `FOLDERS`
    field: str  # the input spec's field for the tensor's name


STATE = {  # type of an input spec -> where the input is stored
    "parameter": _StateInput("weights", "parameter_name"),
    "buffer": _StateInput("weights", "buffer_name"),
    "tensor_constant": _StateInput("constants", "tensor_constant_name"),
}


class StoredTensor(NamedTuple):
    """A tensor or an object, as an entry of a payload config describes it."""

    name: str  # the key in the state dict or in the constants
    record: str  # the name of the record with the data
    is_pickled: bool  # whether the record is a pickle
    meta: dict[str, Any] | None  # a `TensorMeta` of the schema; None for objects

    def is_meta(self) -> bool:
        """Return whether the tensor was on the meta device and therefore lacks data."""
        return self.meta is not None and bool(self.meta["device"]["type"] == "meta")

    def place(self) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
        """Return itemsize, sizes, strides, storage offset; or raise an exception in `DAMAGE`."""
        assert self.meta is not None
        number = fields.expect_int(self.meta["dtype"])
        _, itemsize = dtype_of(number)
        if itemsize == 0:
            raise ValueError(f"expected the number of a dtype, found {number}")
        sizes, strides = (
            tuple(fields.expect_int(each["as_int"]) for each in self.meta[key])
            for key in ("sizes", "strides")
        )
        return itemsize, sizes, strides, fields.expect_int(self.meta["storage_offset"]["as_int"])


def config_record(model: str, folder: str) -> str:
    """Return the name of the record of a payload config. `folder` is a key of `FOLDERS`."""
    is_weights = folder == "weights"
    return (names.weights_config_record if is_weights else names.constants_config_record)(model)


def has_external_weights(package: Package, model: str) -> bool:
    """Return whether the weights are in another file or were not saved."""
    return names.weights_file_record(model) in package.records


def stored_tensors(package: Package, model: str, folder: str) -> Iterator[StoredTensor]:
    """Yield the entries of a payload config if it exists; InspectionError if it is damaged."""
    record = config_record(model, folder)
    if record not in package.records:
        return
    text = package.read(record)
    with package.release_charges():
        fields.read_document(text, "PayloadConfig", record, package)
    with fields.damage_is_named(f"record {record!r}"):
        entries = fields.expect_object(fields.parse(text, record, package)["config"])
    for name, entry in entries.items():
        yield StoredTensor(
            name,
            f"{FOLDERS[folder]}{entry['path_name']}",
            entry["use_pickle"],
            entry["tensor_meta"],
        )

"""Read programs from an archive."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.export import ExportedProgram

from fxpress import _native
from fxpress._files.archive import weight_files
from fxpress._files.archive.load_options import Options
from fxpress._files.archive.reader import PT2ArchiveReader
from fxpress._files.archive.storages import View, on_one_storage, read_tensors, view_of
from fxpress._files.errors import ArchiveError
from fxpress._files.format import names
from fxpress._files.serde.artifacts import load_any
from fxpress._files.serde.damage import NeedsPickleError, damage_is_named
from fxpress._files.serde.limits import Budget, LimitError
from fxpress._files.serde.reading import check_version, decode
from fxpress._files.serde.schema import CLASSES, SCHEMA
from fxpress._files.serde.values import Values
from fxpress._torch import archive as torch_archive
from fxpress._torch import serde as compat
from fxpress._torch.watching import phase

log = logging.getLogger("fxpress")
_TENSOR_BYTES = 1000  # estimated bytes of the Python objects for a tensor


class Payload(NamedTuple):
    """A value's entry in a payload config, as `_native.Document.payloads` returns it."""

    name: str
    record: str  # the record's name without the folder
    is_parameter: bool
    is_pickled: bool
    meta: tuple[Any, ...] | None


def read_config(archive: PT2ArchiveReader, record: str) -> list[Payload]:
    """Return the entries of the payload config (`schema.PayloadConfig`) in a record."""
    data = archive.read_bytes(record)
    try:
        with damage_is_named("it", ArchiveError):
            budget = archive.budget
            entries = SCHEMA.read(data, "PayloadConfig", budget.native).payloads()
            budget.charge(len(entries) * _TENSOR_BYTES, f"record {record!r}")
            return [Payload(*entry) for entry in entries]
    except LimitError:
        raise
    except compat.SerializeError as e:
        raise ArchiveError(f"record {record!r} is damaged: {e}") from e


def records_of(archive: PT2ArchiveReader, model: str) -> Iterator[str]:
    """Yield a program's record names, the graph's first; ArchiveError if a config is damaged."""
    yield names.model_record(model)
    yield names.sample_inputs_record(model)
    for config, folder in (
        (names.weights_config_record(model), names.WEIGHTS_DIR),
        (names.constants_config_record(model), names.CONSTANTS_DIR),
    ):
        yield config
        for payload in read_config(archive, config):
            yield folder + payload.record
    if archive.find(names.shared_storages_record(model)) is not None:
        yield names.shared_storages_record(model)


def views_of(config: list[Payload], folder: str, options: Options) -> dict[str, View]:
    """Return name -> `View` for the entries of a config, none of which may be pickled."""
    return {
        payload.name: view_of(
            payload.name, folder + payload.record, payload.is_parameter, payload.meta, options
        )
        for payload in config
    }


def read_values(
    archive: PT2ArchiveReader, config: list[Payload], folder: str, options: Options
) -> dict[str, Any]:
    """Return name -> tensor in the order of a config. Tensors in one record share a storage."""
    with _native.GcPause():
        views = views_of([p for p in config if not p.is_pickled], folder, options)
    plain = read_tensors(archive, views, options)
    if len(plain) == len(config):
        return plain
    return {
        payload.name: plain[payload.name]
        if payload.name in plain
        else _unpickle(archive, folder + payload.record, options)
        for payload in config
    }


def _unpickle(archive: PT2ArchiveReader, record: str, options: Options) -> Any:
    """Return a tensor of a subclass, which `save` stored as a pickle."""
    data = archive.read_bytes(record)
    return load_any(
        data,
        f"record {record!r}",
        Values({}, options.map_location, archive.budget),
        allow_pickle=options.allow_pickle,
    )


def _read_object(archive: PT2ArchiveReader, record: str, options: Options) -> Any:
    """Return a script object or an opaque object from its pickle."""
    data = archive.read_bytes(record)
    if not options.allow_pickle:
        raise NeedsPickleError(
            f"record {record!r} is an object that cannot be read without unpickling it, which may "
            "run any code; pass allow_pickle=True to permit that.",
            f"record {record!r}",
        )
    is_script_object = record.startswith(names.CONSTANTS_DIR + names.CUSTOM_OBJECT)
    load = torch_archive.unpickle_script_object if is_script_object else pickle.loads
    return load(data)


def _read_older(archive: PT2ArchiveReader, record: str) -> bytes | None:
    """Return the bytes of a record that only older torch wrote; None if the record is missing."""
    if archive.find(record) is None:
        return None
    log.warning("%r is of an older format: save the program again.", record)
    return archive.read_bytes(record)


def read_weights(archive: PT2ArchiveReader, model: str, options: Options) -> Any:
    """Return a program's state as name -> tensor, or as bytes in an archive of an older torch."""
    older = _read_older(archive, f"{names.WEIGHTS_DIR}{model}.pt")
    if older is not None:
        return older
    config = read_config(archive, names.weights_config_record(model))
    place = names.weights_file_record(model)
    if archive.find(place) is not None:
        views = views_of(config, "", options)
        return weight_files.read(archive.read_string(place), views, options, archive.budget)
    return read_values(archive, config, names.WEIGHTS_DIR, options)


def _read_constants(archive: PT2ArchiveReader, model: str, options: Options) -> Any:
    older = _read_older(archive, f"{names.CONSTANTS_DIR}{model}.pt")
    if older is not None:
        return older
    record = names.constants_config_record(model)
    config = read_config(archive, record)
    tensors: list[Payload] = []
    for payload in config:
        if payload.record.startswith(names.TENSOR_CONSTANT):
            tensors.append(payload)
        elif not payload.record.startswith(names.OBJECTS):
            raise ArchiveError(f"record {record!r}: Unsupported constant type: {payload.record!r}")
    # Building the graph needs the constants, so `load_weights` does not apply to them.
    whole = Options(**{**vars(options), "load_weights": True})
    values = read_values(archive, tensors, names.CONSTANTS_DIR, whole)
    return {
        payload.name: values[payload.name]
        if payload.name in values
        else _read_object(archive, names.CONSTANTS_DIR + payload.record, options)
        for payload in config
    }


def join_storages(
    archive: PT2ArchiveReader, model: str, state: dict[str, Any], constants: dict[str, Any] | None
) -> None:
    """Make values of `state` and `constants` share a storage if they shared one when saved."""
    record = names.shared_storages_record(model)
    if archive.find(record) is None:
        return
    try:
        groups = archive.budget.load_json(archive.read_bytes(record), f"record {record!r}")
        done: set[tuple[int, str]] = set()
        for group in groups if isinstance(groups, list) else [groups]:
            held = [(state, str(name)) for name in group["state"]]
            if constants is not None:
                held += [(constants, str(name)) for name in group["constants"]]
            keys = {(id(table), name) for table, name in held}
            if len(keys) < len(held) or keys & done:  # no value may be copied twice
                raise ValueError("the record lists the name of a value twice")
            done |= keys
            joined = on_one_storage([table[name] for table, name in held], len(group["state"]))
            for (table, name), value in zip(held, joined, strict=True):
                table[name] = value
    except (ValueError, KeyError, TypeError) as e:
        raise ArchiveError(f"record {record!r} is damaged: {e!r}") from None


class Parts(NamedTuple):
    """The contents of a program's records in an archive, from which `decode` builds the program."""

    record: str  # the name of the graph's record
    text: bytes  # the JSON of the graph
    weights: Any  # a dict by name, or the bytes that older torch wrote
    constants: Any
    examples: bytes
    budget: Budget

    def decode(self, options: Options) -> ExportedProgram:
        """Build the program. Callers pause garbage collection, which would free nothing."""
        try:
            with phase("text"):
                document = SCHEMA.read(self.text, "ExportedProgram", self.budget.native)
            check_version(document.field(CLASSES, "schema_version"), False)
            return decode(
                document,
                self.weights,
                self.constants,
                self.examples,
                allow_pickle=options.allow_pickle,
                allowed=options.allowed,
                location=options.map_location,
                budget=self.budget,
            )
        except LimitError as e:
            raise LimitError(e.limit, f"record {self.record!r}: {e.place}") from e
        except compat.SerializeError as e:
            raise compat.SerializeError(f"record {self.record!r}: {e}") from e


def read_parts(archive: PT2ArchiveReader, model: str, options: Options) -> Parts:
    """Read the parts of a program from an archive."""
    record = names.model_record(model)
    text = archive.read_bytes(record)
    with phase("reading weights"):
        weights = read_weights(archive, model, options)
    with phase("reading constants"):
        constants = _read_constants(archive, model, options)
    if isinstance(weights, dict) and isinstance(constants, dict):
        join_storages(archive, model, weights, constants)
    examples = archive.read_bytes(names.sample_inputs_record(model))
    return Parts(record, text, weights, constants, examples, archive.budget)


def read_extra_files(archive: PT2ArchiveReader) -> dict[str, str]:
    """Return name -> text of the extra files that were saved with the programs."""
    return {
        name.removeprefix(names.EXTRA_DIR): archive.read_string(name)
        for name in archive.get_file_names()
        if name.startswith(names.EXTRA_DIR)
    }

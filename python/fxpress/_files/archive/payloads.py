"""Write a record for each storage of weights and constants, and a config with tensors' views."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from fxpress._base.errors import UnsupportedError
from fxpress._files.archive import tensors
from fxpress._files.archive.writer import PT2ArchiveWriter, Stored
from fxpress._files.format import names
from fxpress._files.serde.artifacts import pickled
from fxpress._files.serde.schema import SCHEMA
from fxpress._files.tensors.copies import sharing
from fxpress._files.tensors.transfer import addresses, download
from fxpress._torch import archive as torch_archive
from fxpress._torch import serde as compat
from fxpress._torch.aten import storages_of
from fxpress._torch.fx import is_opaque_value

# A payload config; its entries are (name, record, tensor, is_parameter, is_pickled).
Config: TypeAlias = list[tuple[str, str, torch.Tensor | None, bool, bool]]


def shared_storages(state: Config, constants: Config) -> str:
    """Return groups of tensors that share a storage but not a record, as JSON; "" for no groups."""
    # A storage is written once for each dtype, and separately for state and constants. torch reads
    # each of these records as another storage.
    plain = [
        (folder, *entry[:3])
        for folder, config in (("state", state), ("constants", constants))
        for entry in config
        if entry[2] is not None and not entry[4] and not entry[2].is_meta
    ]
    groups = []
    for positions in sharing([tensor for *_, tensor in plain]):
        if len({plain[i][::2] for i in positions}) > 1:
            group: dict[str, list[str]] = {"state": [], "constants": []}
            for folder, name, *_ in (plain[i] for i in positions):
                group[folder].append(name)
            groups.append(group)
    return json.dumps(groups) if groups else ""


def config_bytes(config: Config) -> bytes:
    """Return a config as the JSON bytes that torch writes for a `schema.PayloadConfig`."""
    if SCHEMA.difference():
        raise UnsupportedError(
            f"the schema of this torch differs in {SCHEMA.difference()}, which fxpress cannot write"
        )
    return SCHEMA.encode_payload_config(config)


def check_state(state_dict: Mapping[str, Any]) -> None:
    """Raise AssertionError unless all values are tensors."""
    for value in state_dict.values():
        if not isinstance(value, torch.Tensor):
            raise AssertionError("only torch.Tensor is allowed in state_dict")


def _write_storages(archive: PT2ArchiveWriter, groups: list[tuple[str, tensors.Group]]) -> None:
    """Write the storage of each group to a record; a storage without memory is an empty record."""
    for device, run in itertools.groupby(groups, lambda pair: pair[1].device):
        some = list(run)
        if device.type == "cpu":
            archive.write_memory(
                [Stored(record, each.size, 0, each.address, each.size) for record, each in some]
            )
            continue
        data = storages_of([group.largest for _, group in some if group.largest is not None])
        for parts, buffer in download(data):
            stored = []
            for part, address in zip(parts, addresses(buffer, parts), strict=True):
                record, group = some[part.position]
                stored.append(Stored(record, group.size, part.start, address, part.size))
            archive.write_memory(stored)


def write_tensors(
    archive: PT2ArchiveWriter,
    values: Mapping[str, torch.Tensor],
    folder: str,
    prefix: str,
    pickle_protocol: int,
) -> Config:
    """Write tensors to records `<folder><prefix><number>`; start with pickles of subclasses."""
    number = archive.count_prefix(folder + prefix)
    groups, others = tensors.group_by_storage(values)
    config: Config = []

    def add(name: str, tensor: torch.Tensor, *, pickled: bool) -> None:
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        config.append((name, names.payload(prefix, number), tensor, is_parameter, pickled))

    for name in others:
        data = pickled(values[name], pickle_protocol)
        archive.write_bytes(folder + names.payload(prefix, number), data)
        add(name, values[name], pickled=True)
        number += 1
    numbered: list[tuple[str, tensors.Group]] = []
    for group in groups:
        numbered.append((folder + names.payload(prefix, number), group))
        for name, tensor in group.tensors.items():
            add(name, tensor, pickled=False)
        number += 1
    _write_storages(archive, numbered)
    return config


def write_weights(
    archive: PT2ArchiveWriter, state_dict: Mapping[str, Any], pickle_protocol: int
) -> Config:
    """Write the state of a program, and return the payload config of the state."""
    check_state(state_dict)
    return write_tensors(archive, state_dict, names.WEIGHTS_DIR, names.WEIGHT, pickle_protocol)


def write_constants(
    archive: PT2ArchiveWriter, constants: Mapping[str, Any], pickle_protocol: int
) -> Config:
    """Write constants; return their payload config. RuntimeError for a constant of unknown type."""
    values: dict[str, torch.Tensor] = {}
    objects: dict[str, Any] = {}
    for name, constant in constants.items():
        if isinstance(constant, torch.Tensor):
            values[name] = constant
        elif isinstance(constant, compat.ScriptObject) or is_opaque_value(constant):
            objects[name] = constant
        else:
            raise RuntimeError(f"Unsupported constant type: {type(constant)}: {name!r}")
    folder = names.CONSTANTS_DIR
    counts = {
        prefix: archive.count_prefix(folder + prefix)
        for prefix in (names.CUSTOM_OBJECT, names.OPAQUE_OBJECT)
    }
    config = write_tensors(archive, values, folder, names.TENSOR_CONSTANT, pickle_protocol)
    for name, constant in objects.items():
        if isinstance(constant, compat.ScriptObject):
            prefix, data = names.CUSTOM_OBJECT, torch_archive.pickle_script_object(constant)
        else:
            prefix, data = names.OPAQUE_OBJECT, pickle.dumps(constant, protocol=pickle_protocol)
        record = names.payload(prefix, counts[prefix])
        counts[prefix] += 1
        archive.write_bytes(folder + record, data)
        config.append((name, record, None, False, True))
    return config

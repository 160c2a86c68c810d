"""Distribute the items of a save to files, and name the files."""

from __future__ import annotations

import math
import re
import secrets
from typing import NamedTuple

import torch
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from fxpress._base.errors import UnsupportedError
from fxpress._distributed.checkpoint.section import key_of
from fxpress._files.archive.tensor_file import CODES
from fxpress._files.format.tensor_header import METADATA

DIGITS = 16  # how many leading digits of a save's number occur in its file names
FILE = re.compile(r"model-\d{5,}-of-\d{5,}-([0-9a-f]{16})\.safetensors")


class Work(NamedTuple):
    """The files that a rank writes."""

    number: str  # the random number of the save; each file contains it
    # The name of each file, and the positions of its items in the rank's plan.
    files: list[tuple[str, list[int]]]


def check_item(item: WriteItem) -> None:
    """Raise UnsupportedError for an item that cannot be in a safetensors file or its index."""
    name = item.index.fqn
    if name == METADATA or not _is_unicode(name):
        raise UnsupportedError(f"{name!r} cannot be the name of a tensor in a safetensors file")
    if item.type is WriteItemType.BYTE_IO:
        return
    properties = item.tensor_data.properties
    if properties.dtype not in CODES or properties.layout is not torch.strided:
        raise UnsupportedError(
            f"{name!r} cannot be in a safetensors file ({properties.dtype}, {properties.layout})"
        )


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def key_of_item(item: WriteItem) -> str:
    """Return the name of an item's tensor or slice in its file."""
    data = item.tensor_data
    return key_of(item.index.fqn, data.size, data.chunk.offsets, data.chunk.sizes)


def _bytes_of(item: WriteItem) -> int:
    data = item.tensor_data
    return int(math.prod(data.chunk.sizes) * data.properties.dtype.itemsize)


def _is_needed(item: WriteItem) -> bool:
    """Return False for items that no file contains: values, and empty slices of other tensors."""
    if item.type is WriteItemType.BYTE_IO:
        return False
    return _bytes_of(item) > 0 or math.prod(item.tensor_data.size) == 0


def distribute_items(plans: list[list[WriteItem]], most: int) -> list[Work]:
    """Assign ranks' items to files of at most `most` bytes; a larger tensor gets its own file."""
    number = secrets.token_hex(16)
    groups = [_groups(items, most) for items in plans]
    count = sum(map(len, groups))
    names = iter(
        f"model-{i:05d}-of-{count:05d}-{number[:DIGITS]}.safetensors" for i in range(1, count + 1)
    )
    return [Work(number, [(next(names), group) for group in each]) for each in groups]


def _groups(items: list[WriteItem], most: int) -> list[list[int]]:
    """Return, for each file of a rank, the positions of the file's items in `items`."""
    groups: list[list[int]] = []
    keys: set[str] = set()
    left = 0  # bytes that may still be added to the last group
    for position, item in enumerate(items):
        if not _is_needed(item):
            continue
        size, key = _bytes_of(item), key_of_item(item)
        if key in keys:
            raise UnsupportedError(f"two tensors of a rank need the same name {key!r} in a file")
        if not groups or size > left:
            groups.append([])
            left = most
        keys.add(key)
        groups[-1].append(position)
        left -= size
    return groups

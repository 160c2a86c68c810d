"""Weights that are not in the archive: in a safetensors file beside it, or nowhere."""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fxpress import _torch_compat_serde as compat
from fxpress._archive import names, tensors
from fxpress._archive.errors import ArchiveError
from fxpress._archive.files import AtomicFile
from fxpress._archive.options import Options
from fxpress._archive.payloads import Config, check_state
from fxpress._archive.storages import View, bytes_by_record, make_all
from fxpress._errors import UnsupportedError

_NUMBER = "fxpress_save"  # in the file's metadata: which save it belongs to


def describe(state_dict: Mapping[str, Any]) -> Config:
    """The config of weights whose records are not written."""
    groups, _ = tensors.group_by_storage(_plain(state_dict))
    return [
        (name, f"{names.WEIGHT}{number}", value, isinstance(value, torch.nn.Parameter), False)
        for number, group in enumerate(groups)
        for name, value in group.tensors.items()
    ]


def _plain(state_dict: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
    check_state(state_dict)
    for name, tensor in state_dict.items():
        if tensors.has_class_of_its_own(tensor):
            raise UnsupportedError(
                f"{name!r} is a {type(tensor).__name__}, which is stored in the archive only: save "
                'with weights="inline"'
            )
    return state_dict


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as e:
        raise ImportError("safetensors files need `pip install fxpress[safetensors]`") from e
    return safetensors


@dataclass
class Beside:
    """A file of weights that is to take its place when the archive has."""

    place: str  # what the archive says of it
    file: AtomicFile


def write_beside(f: Any, model: str, state_dict: Mapping[str, Any]) -> Beside:
    """Writes the weights into a file beside the archive, which is not yet in its place.

    The two have a number in common, so that files of two saves are never taken together.
    """
    library = _safetensors()
    path = Path(os.path.realpath(f))
    suffix = "" if model == names.MODEL else f".{model}"
    name = f"{path.name.removesuffix('.pt2')}{suffix}.safetensors"
    number = secrets.token_hex(16)
    file = AtomicFile(path.with_name(name))
    try:
        metadata = {"format": "pt", _NUMBER: number}
        library.torch.save_file(_separate(_plain(state_dict)), file.name, metadata=metadata)
        file.reopen()  # the library makes a file of its own
    except BaseException:
        file.discard()
        raise
    return Beside(json.dumps({"file": name, "number": number}), file)


def _separate(state_dict: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors with bytes of their own, in order, as the format wants them; which ones shared a
    storage the archive knows."""
    seen: set[int] = set()
    made: dict[str, torch.Tensor] = {}
    for name, tensor in state_dict.items():
        value = tensor.detach()
        address = value.untyped_storage().data_ptr()
        if not _is_whole(value) or (address and address in seen):
            value = tensors.without_lazy_bits(value).clone(memory_format=torch.contiguous_format)
        seen.add(address)
        made[name] = value
    return made


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its storage, in order."""
    if tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous():
        return False
    return bool(tensor.numel() * tensor.itemsize == tensor.untyped_storage().nbytes())


def read(place: str, views: Mapping[str, View], options: Options) -> dict[str, torch.Tensor]:
    """The weights of an archive that are elsewhere.

    Args:
        place: the name of the file beside the archive; "" when they were not saved.
    """
    if not options.load_weights:
        return assemble(views, None)
    if not place:
        raise ArchiveError(
            "the program was saved without its weights: load it with load_weights=False and give "
            "them with fxpress.state.load_into"
        )
    if options.path is None:
        raise ArchiveError(f"the weights are in {place} beside the archive: load it from a path")
    try:
        said = json.loads(place)
        name, number = str(said["file"]), str(said["number"])
    except (ValueError, KeyError, TypeError) as e:
        raise ArchiveError(f"the record of the weights' file is damaged: {e!r}") from None
    if os.path.basename(name) != name or not name.endswith(".safetensors") or "\0" in name:
        raise ArchiveError(f"the weights are not beside the archive, but in {name!r}")
    with open_weights(Path(os.path.realpath(options.path)).with_name(name), number) as get:
        return assemble(views, get)


@contextmanager
def open_weights(path: Path, number: str | None = None) -> Iterator[Callable[[str], torch.Tensor]]:
    """A function: name -> tensor of a safetensors file, KeyError for what is not there.

    Args:
        number: of the save that the file has to belong to; None: any.
    """
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    library = _safetensors()
    try:
        with library.safe_open(str(path), framework="pt") as file:
            if number is not None and (file.metadata() or {}).get(_NUMBER) != number:
                raise ArchiveError(f"{path} belongs to another archive, or to another save of it")
            known = set(file.keys())

            def get(name: str) -> torch.Tensor:
                if name not in known:
                    raise KeyError(name)
                found: torch.Tensor = file.get_tensor(name)
                return found

            yield get
    except library.SafetensorError as e:
        raise ArchiveError(f"{path} is damaged: {e}") from e


def assemble(
    views: Mapping[str, View], get: Callable[[str], torch.Tensor] | None
) -> dict[str, torch.Tensor]:
    """Tensors as the views say, which share storages where those do.

    Args:
        get: their values; None: tensors on the meta device.

    Raises:
        SerializeError: a value is missing, or has another shape or dtype.
    """
    values = {} if get is None else {name: fitting(name, v, get) for name, v in views.items()}
    needed = bytes_by_record(views.values())
    positions = {record: position for position, record in enumerate(needed)}
    devices = {view.record: view.device for view in views.values()}
    storages = [
        # What no tensor sees is written too, when they are saved again.
        torch.zeros(size, dtype=torch.uint8, device="meta" if get is None else devices[record])
        for record, size in needed.items()
    ]
    planned = [(positions[view.record], *view[:-1]) for view in views.values()]
    made = dict(zip(views, make_all(storages, planned), strict=True))
    for name, value in values.items():
        copy_values(made[name], value)
    return made


def copy_values(target: torch.Tensor, value: torch.Tensor) -> None:
    """`target.copy_(value)`, also where elements of the target are one place in memory."""
    sizes = [1 if step == 0 else n for n, step in zip(target.shape, target.stride(), strict=True)]
    if target.numel() == 0:
        return
    index = tuple(slice(0, n) for n in sizes)
    with torch.no_grad():
        target[index].copy_(value[index])


def fitting(name: str, target: Any, get: Callable[[str], torch.Tensor]) -> torch.Tensor:
    """The value of that name; SerializeError where there is none that fits.

    Args:
        target: a tensor or a view, which it is for.
    """
    sizes = tuple(target.sizes if isinstance(target, View) else target.shape)
    try:
        value = get(name)
    except KeyError:
        raise compat.SerializeError(f"there is no value for {name!r}") from None
    if tuple(value.shape) != sizes or value.dtype != target.dtype:
        raise compat.SerializeError(
            f"the value for {name!r} is {value.dtype}{list(value.shape)} instead of "
            f"{target.dtype}{list(sizes)}"
        )
    return value

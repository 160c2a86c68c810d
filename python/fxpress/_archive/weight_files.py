"""Weights that are not in the archive: in a safetensors file beside it, or nowhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fxpress import _torch_compat_serde as compat
from fxpress._archive import names, tensors
from fxpress._archive.errors import ArchiveError
from fxpress._archive.files import AtomicFile
from fxpress._archive.options import Options
from fxpress._archive.payloads import Config, check_state
from fxpress._archive.storages import View, bytes_needed, make_all
from fxpress._errors import UnsupportedError


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


def write_beside(f: Any, model: str, state_dict: Mapping[str, Any], weights: str) -> str | None:
    """Writes the weights where `save(weights=)` says; what the archive says of that place.

    None stands for the archive itself, "" for nowhere.
    """
    if weights != "safetensors":
        return None if weights == "inline" else ""
    library = _safetensors()
    path = Path(f)
    suffix = "" if model == names.MODEL else f".{model}"
    name = f"{path.name.removesuffix('.pt2')}{suffix}.safetensors"
    # Each tensor has bytes of its own there; which ones shared a storage the archive knows.
    separate = {
        key: tensors.without_lazy_bits(tensor.detach()).contiguous().clone()
        if _is_shared(tensor)
        else tensor.detach()
        for key, tensor in _plain(state_dict).items()
    }
    file = AtomicFile(path.with_name(name))
    try:
        library.torch.save_file(separate, file.name, metadata={"format": "pt"})
        file.commit()
    finally:
        file.discard()
    return name


def _is_shared(tensor: torch.Tensor) -> bool:
    """Whether a tensor is not all of its storage, in order: the format wants that."""
    if tensor.is_conj() or tensor.is_neg() or not tensor.is_contiguous():
        return True
    return bool(tensor.numel() * tensor.itemsize != tensor.untyped_storage().nbytes())


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
        raise ArchiveError(f"the weights are in {place!r} beside the archive: load it from a path")
    if os.path.basename(place) != place:
        raise ArchiveError(f"the weights are not beside the archive, but in {place!r}")
    path = Path(os.path.realpath(options.path)).with_name(place)
    with open_weights(path) as get:
        return assemble(views, get)


def open_weights(path: Path) -> Any:
    """A context with a function: name -> tensor of a safetensors file, KeyError for what is not."""
    from contextlib import contextmanager

    @contextmanager
    def opened() -> Any:
        if not path.is_file():
            raise FileNotFoundError(2, os.strerror(2), str(path))
        library = _safetensors()
        try:
            with library.safe_open(str(path), framework="pt") as file:
                known = set(file.keys())

                def get(name: str) -> torch.Tensor:
                    if name not in known:
                        raise KeyError(name)
                    found: torch.Tensor = file.get_tensor(name)
                    return found

                yield get
        except library.SafetensorError as e:
            raise ArchiveError(f"{path} is damaged: {e}") from e

    return opened()


def assemble(
    views: Mapping[str, View], get: Callable[[str], torch.Tensor] | None
) -> dict[str, torch.Tensor]:
    """Tensors as the views say, which share storages where those do.

    Args:
        get: their values; None: tensors on the meta device.

    Raises:
        SerializeError: a value is missing, or has another shape or dtype.
    """
    needed: dict[str, int] = {}
    for view in views.values():
        needed[view.record] = max(needed.get(view.record, 0), bytes_needed(view))
    positions = {record: position for position, record in enumerate(needed)}
    devices = {view.record: view.device for view in views.values()}
    storages = [
        torch.empty(size, dtype=torch.uint8, device="meta" if get is None else devices[record])
        for record, size in needed.items()
    ]
    planned = [(positions[view.record], *view[:-1]) for view in views.values()]
    made = dict(zip(views, make_all(storages, planned), strict=True))
    if get is not None:
        with torch.no_grad():
            for name, tensor in made.items():
                tensor.copy_(fitting(name, tensor, get))
    return made


def fitting(name: str, target: torch.Tensor, get: Callable[[str], torch.Tensor]) -> torch.Tensor:
    """The value of that name; SerializeError where there is none that fits."""
    try:
        value = get(name)
    except KeyError:
        raise compat.SerializeError(f"there is no value for {name!r}") from None
    if value.shape != target.shape or value.dtype != target.dtype:
        raise compat.SerializeError(
            f"the value for {name!r} is {value.dtype}{list(value.shape)} instead of "
            f"{target.dtype}{list(target.shape)}"
        )
    return value

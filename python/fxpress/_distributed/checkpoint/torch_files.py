"""Read checkpoints of torch's FileSystemWriter without running code in them.

The file `.metadata` of such a checkpoint is a pickle of objects of torch's classes. The unpickler
of this module creates objects of other classes, which only store the pickled state.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fxpress import _native
from fxpress._base.errors import Error, is_about_input
from fxpress._distributed.checkpoint.boxes import Extent
from fxpress._distributed.checkpoint.section import check_slices
from fxpress._distributed.checkpoint.weights import Place, Slice, Stored, Weights, is_dense
from fxpress._files.archive.weight_files import Form, difference_of
from fxpress._files.errors import ArchiveError
from fxpress._files.format import names
from fxpress._files.format.fields import sizes_in
from fxpress._files.format.package import WRONG_CHECKSUM, Record
from fxpress._files.format.recognition import read_file
from fxpress._files.format.weights_location import is_file_name
from fxpress._files.remote.ranges import Checked, File
from fxpress._files.serde.artifacts import check_pickle, load_any
from fxpress._files.serde.limits import Budget, Limits
from fxpress._files.serde.values import Values
from fxpress._torch.checkpoint import LAYOUT, METADATA_CLASSES, STORAGES, TENSORS

METADATA = names.CHECKPOINT_METADATA
_PATHS = ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "Path")
_ELEMENT = 64  # the estimated memory of an element of the metadata, in bytes
_LONGEST = 1 << 16  # the maximum bytes of the pickle of a tensor
_MOST_ELEMENTS = 1 << 10  # the maximum number of elements of the pickle of a tensor
_BYTE_ORDER = sys.byteorder.encode()


class _Unpickler(pickle.Unpickler):
    """Replaces each class that the file names by a class whose objects only store a `state`."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))

        # A pickle can set attributes of classes and functions, so each file gets new ones.
        class Made:
            state: Any

            def __new__(cls, *_: Any) -> Any:
                return object.__new__(cls)

            def __setstate__(self, state: Any) -> None:
                self.__dict__["state"] = state

        self._kinds = {
            (module, name): type(name, (Made,), {})
            for module, kinds in METADATA_CLASSES.items()
            for name in kinds
        }
        self._functions: dict[tuple[str, str], Callable[..., Any]] = {
            ("torch", "Size"): lambda values=(): tuple(values),
            LAYOUT: lambda *names: _text(*names),  # noqa: PLW0108
            ("builtins", "getattr"): self._member_of_enum,
        }

    def _member_of_enum(self, kind: Any, _: str) -> Any:
        """Stand in for `getattr`, with which Python 3.11.0 to 3.11.3 pickle members of enums."""
        if kind not in self._kinds.values():
            raise pickle.UnpicklingError("the pickle calls builtins.getattr, but not for an enum")
        return kind()

    def find_class(self, module: str, name: str) -> Any:
        """Return the replacement of torch's class or function; UnpicklingError for other names."""
        kind = self._kinds.get((module, name)) or self._functions.get((module, name))
        if kind is not None:
            return kind
        if module.partition(".")[0] == "pathlib" and name in _PATHS:
            return lambda *parts: "/".join(parts)
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise pickle.UnpicklingError(
            f"the pickle names {module}.{name}, which does not belong to a checkpoint"
        )


def add_torch_checkpoint(weights: Weights, folder: Path, limits: Limits | Budget | None) -> None:
    """Add the tensors and values of a checkpoint of torch."""
    with _metadata(folder, limits) as (metadata, budget):
        _add(weights, folder, metadata, budget)


def contents_of(folder: Path, limits: Limits | None) -> dict[str, Form | None]:
    """Return the dtype and sizes of each tensor in torch's checkpoint; None for other values."""
    with _metadata(folder, limits) as (metadata, _):
        described = metadata["state_dict_metadata"].items()
        return {_text(name): _form(name, kind) for name, kind in described}


@contextlib.contextmanager
def _metadata(
    folder: Path, limits: Limits | Budget | None
) -> Iterator[tuple[dict[str, Any], Budget]]:
    """Yield the contents of `.metadata`; convert an error in the block to an ArchiveError."""
    path = folder / METADATA
    data = read_file(path)
    budget = Budget.of(limits, len(data))
    try:
        # check_pickle frees its memory when it returns, so it gets a separate budget.
        elements = check_pickle(data, str(path), Budget(budget.limits, len(data)))
        budget.charge(_ELEMENT * elements, str(path))
        yield _Unpickler(data).load().state, budget
    except (Error, OSError):
        raise
    except KeyError:  # the error's text is a key of any size, so it is not reported
        raise ArchiveError(f"{path} is damaged: a field or a part of a tensor is missing") from None
    except Exception as error:  # damaged pickles, and objects built from them, may raise any type
        if not is_about_input(error):
            raise
        raise ArchiveError(f"{path} is damaged: {error!r}") from None


def _form(name: str, kind: Any) -> Form | None:
    """Return the dtype and the sizes of a tensor; None for a value of another type."""
    if type(kind).__name__ == "BytesStorageMetadata":
        return None
    dtype = kind.state["properties"].state[0]
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r}: expected a dtype, found {reprlib.repr(dtype)}")
    return dtype, sizes_in([*kind.state["size"]])


def _add(weights: Weights, folder: Path, metadata: dict[str, Any], budget: Budget) -> None:
    files: dict[str, File] = {}
    # A key is a tensor's name, and a slice's offsets as a string. As tuples of ints, the offsets in
    # a hostile file could have equal hashes, which make a dict slow.
    places: dict[tuple[str, str], _Saved] = {}
    for index, info in metadata["storage_data"].items():
        name, offset = _text(index.state["fqn"]), sizes_in([*(index.state.get("offset") or ())])
        about = info.state
        if about.get("transform_descriptors"):
            raise ValueError(f"{name!r} is stored with extensions, which cannot be read")
        path = _inside(folder, _text(about["relative_path"]))
        if path.name not in files:
            files[path.name] = weights.files.file(path)
            budget.grow(files[path.name].size)
        begin, size = sizes_in([about["offset"], about["length"]])
        places[name, str(offset)] = _Saved(files[path.name], begin, size, name, budget)
    for name, kind in metadata["state_dict_metadata"].items():
        form = _form(_text(name), kind)
        if form is None:
            weights.values[name] = places[name, "()"].read()
            continue
        dtype, sizes = form
        slices = tuple(_slice(name, dtype, each.state, places) for each in kind.state["chunks"])
        check_slices(name, sizes, slices, budget)
        weights.tensors[name] = Stored(dtype, sizes, slices)


class _Saved(NamedTuple):
    """A value that `torch.save` wrote into a part of a file."""

    file: File
    begin: int
    size: int
    name: str  # for errors
    budget: Budget

    def read(self) -> Any:
        """Return the value. ArchiveError: it is damaged; SerializeError: it must be unpickled."""
        data = self.file.read(self.begin, self.begin + self.size)
        self.budget.charge(self.size, repr(self.name))  # the same bytes may belong to many tensors
        values = Values({}, "cpu", self.budget)
        return load_any(data, f"{self.file.path}: {self.name!r}", values)


def _slice(
    name: str, dtype: torch.dtype, chunk: dict[str, Any], places: Mapping[tuple[str, str], _Saved]
) -> Slice:
    offsets, sizes = (sizes_in([*chunk[key]]) for key in ("offsets", "sizes"))
    saved = places[name, str(offsets)]

    def whole() -> torch.Tensor:
        found = saved.read()
        if not isinstance(found, torch.Tensor):
            raise ArchiveError(f"{name!r} is a {type(found).__name__}, expected a tensor")
        if difference := difference_of((found.dtype, tuple(found.shape)), (dtype, sizes)):
            raise ArchiveError(f"{name!r} differs from {METADATA}: {difference}")
        return found

    def find() -> Place:
        return extent_of(saved.file, saved.begin, saved.size, dtype, sizes) or whole

    return Slice(offsets, sizes, find)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"expected a str, found {reprlib.repr(value)}")
    return value


def _inside(folder: Path, name: str) -> Path:
    if not is_file_name(name):
        raise ValueError(f"expected the name of a file, without a path, found {name!r}")
    return folder / name


class _Part(NamedTuple):
    """A range of bytes of a file, with the interface that `_native.ArchiveReader` needs."""

    file: File
    begin: int
    size: int

    def read(self, begin: int, end: int) -> bytes:
        return self.file.read(self.begin + begin, self.begin + end)


class _Tensor:
    """The arguments with which unpickling rebuilds a tensor."""

    def __init__(self, storage: Any, offset: int, sizes: Any, strides: Any, *others: Any) -> None:
        self.storage, self.offset = storage, offset
        self.sizes, self.strides, self.others = tuple(sizes), tuple(strides), others


class _TensorUnpickler(pickle.Unpickler):
    """Creates a `_Tensor` from the pickle of a tensor; refuses all other pickles."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        # A pickle can set attributes of this class, so each pickle gets a new class.
        self._class = type("_Tensor", (_Tensor,), {})

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in TENSORS:
            return self._class
        if module == "torch" and name in STORAGES:
            return getattr(torch, STORAGES[name])
        if (module, name) == ("torch.storage", "UntypedStorage"):
            return None
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("collections", "OrderedDict"):
            return lambda *_: ()
        raise pickle.UnpicklingError(f"{module}.{name} cannot be in the pickle of a tensor")

    def persistent_load(self, pid: Any) -> Any:
        return pid


def extent_of(
    file: File, begin: int, size: int, dtype: torch.dtype, sizes: tuple[int, ...]
) -> Extent | None:
    """Return the location of a tensor that `torch.save` wrote; None if it must be unpickled."""
    try:
        archive = _native.ArchiveReader(_Part(file, begin, size))
        records = {name: Record(*entry) for name, entry in archive.records().items()}
        if "byteorder" in records and archive.stored_bytes("byteorder") != _BYTE_ORDER:
            return None
        pickled = _pickled(archive, records["data.pkl"])
        tensor = _TensorUnpickler(pickled).load()
        _, of_storage, key, _, _ = tensor.storage
        name = f"data/{key}"
        record, start = records[name], begin + archive.offset(name)
    except Exception as error:  # damaged files may raise any type; unpickling reports the fault
        if not is_about_input(error):
            raise
        return None
    is_same = (of_storage or tensor.others[-1]) is dtype and tensor.sizes == sizes
    numbers = (tensor.offset, *tensor.strides)
    if not is_same or any(type(each) is not int for each in numbers):
        return None
    needed = _native.bytes_needed(sizes, tensor.strides, tensor.offset, dtype.itemsize)
    if needed is None or record.is_deflated or needed > record.size:
        return None
    is_whole = tensor.offset == 0 and needed == record.size and is_dense(sizes, tensor.strides)
    part = Checked(file, start, record.size, record.crc, f"record {name!r}")
    place = start + tensor.offset * dtype.itemsize
    return Extent(file, place, dtype, tensor.strides, part, is_whole)


def _pickled(archive: _native.ArchiveReader, record: Record) -> bytes:
    """Return the pickle of a tensor; ValueError if it is damaged, compressed or too large."""
    if record.is_deflated or record.size > _LONGEST:
        raise ValueError("the pickle is compressed or too large for a single tensor")
    data: bytes = archive.stored_bytes("data.pkl")
    if _native.crc32(data) != record.crc:
        raise ValueError(WRONG_CHECKSUM)
    if check_pickle(data, "data.pkl", Budget(None, len(data))) > _MOST_ELEMENTS:
        raise ValueError("the pickle contains more than a single tensor")
    return data

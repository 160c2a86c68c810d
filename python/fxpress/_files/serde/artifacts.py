"""Convert state, constants and example inputs to and from the bytes of `torch.save`."""

from __future__ import annotations

import copyreg
import io
import logging
import pickle
import pickletools
import re
import types
from collections import ChainMap
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from fxpress import _native
from fxpress._base.errors import UnsupportedError, is_about_input, printable_error
from fxpress._base.observing.progress import Report
from fxpress._files.errors import named_lack_of_memory
from fxpress._files.format.package import inflate
from fxpress._files.serde.damage import OF_WRONG_VALUES, NeedsPickleError, damage_is_named
from fxpress._files.serde.limits import Budget, LimitError, Limits, sizes_of
from fxpress._files.serde.schema import CLASSES, SCHEMA
from fxpress._files.serde.values import Values
from fxpress._torch import serde as compat
from fxpress._torch import unpickling
from fxpress._torch.fx import holds_fake, pytree

log = logging.getLogger("fxpress")
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")  # the refused class or function in errors of torch.load


def _reduce_fake_tensor(tensor: Any) -> tuple[Any, tuple[bytes, bool]]:
    """Return (function, arguments), with which pickle restores a fake tensor from metadata.

    Stands in for `torch._export.serde.serialize._reduce_fake_tensor`.
    """
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    return compat.reconstruct_fake_tensor, (SCHEMA.encode_tensor_meta(tensor), is_parameter)


# `copyreg.dispatch_table` itself stays unchanged, because other threads use it, too.
_reducers: ChainMap[Any, Any] = ChainMap(
    {compat.FakeTensor: _reduce_fake_tensor}, copyreg.dispatch_table
)


class _Pickler(pickle.Pickler):
    dispatch_table = _reducers


# The argument `pickle_module` of `torch.save`.
_pickle = types.SimpleNamespace(__name__="fxpress", Pickler=_Pickler)


def check_values(values: Mapping[str, Any]) -> None:
    """Raise UnsupportedError for a fake tensor in `values`, because it lacks elements to write."""
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and holds_fake(value):
            raise UnsupportedError(
                f"{name!r} is a fake tensor, which does not have values to write: put the real "
                "tensor into `state_dict` or `constants` of the program under this name"
            )


def check_program_values(program: ExportedProgram, *, with_state: bool = True) -> None:
    """Raise UnsupportedError if some tensors of a program are fake, but not all of them."""
    state, constants = program.state_dict, program.constants
    inputs = pytree.tree_leaves(program.example_inputs) if with_state else ()
    values = (*state.values(), *constants.values(), *inputs)
    # torch writes a fake tensor as a record without bytes, and reads the record as zeros. fxpress
    # does so only if all tensors of the program are fake.
    if any(isinstance(value, torch.Tensor) and not holds_fake(value) for value in values):
        check_values({**state, **constants} if with_state else constants)


class UnpicklableError(compat.SerializeError, pickle.PicklingError, AttributeError, TypeError):
    """An object cannot be pickled. The class derives from the errors that pickle raises."""


class _ReportingBuffer(io.BytesIO):
    """A buffer that calls `report` with the number of bytes of each write."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def write(self, data: Any, /) -> int:
        count = super().write(data)
        self._report(count)
        return count


def pickled(
    value: Any, pickle_protocol: int, module: Any = pickle, report: Report | None = None
) -> bytes:
    """Return the bytes that `torch.save` writes; UnpicklableError if pickle fails."""
    buffer = io.BytesIO() if report is None else _ReportingBuffer(report)
    try:
        torch.save(value, buffer, pickle_module=module, pickle_protocol=pickle_protocol)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as e:
        raise UnpicklableError(f"a {type(value).__name__} cannot be pickled: {e}") from e
    return buffer.getvalue()


def save_artifact(
    value: Any,
    pickle_protocol: int = compat.DEFAULT_PICKLE_PROTOCOL,
    *,
    report: Report | None = None,
) -> bytes:
    """Return the bytes that `torch.save` writes for a value; no bytes for None.

    Fake tensors are saved as their metadata. `report` gets the number of bytes of each write.

    Stands in for `torch._export.serde.serialize.serialize_torch_artifact`.

    Raises:
        UnpicklableError: the value cannot be pickled.
    """
    if value is None:
        return b""
    return pickled(value, pickle_protocol, _pickle, report)


def deserialize_torch_artifact(
    serialized: dict[str, Any] | tuple[Any, ...] | bytes,
    *,
    allow_pickle: bool = False,
    limits: Limits | None = None,
) -> Any:
    """Return the value that `save_artifact` wrote; fake tensors in it get a new fake mode.

    Stands in for `torch._export.serde.serialize.deserialize_torch_artifact`, which unpickles values
    by default.

    Args:
        serialized: the bytes; empty bytes mean {}. A dict or tuple is returned unchanged.
        allow_pickle: unpickle objects that `torch.load(weights_only=True)` rejects, which may run
            any code.
        limits: the limits on the cost of reading; None: the defaults.

    Raises:
        fxpress.SerializeError: the bytes are damaged, contain neither a dict nor a tuple, or need
            `allow_pickle`.
        fxpress.LimitError: reading would exceed the limits.
        TypeError: `serialized` is neither bytes, a dict nor a tuple.
    """
    values = Values({}, budget=Budget(limits, sizes_of(serialized)))
    return load_artifact(serialized, "the artifact", values, allow_pickle=allow_pickle)


def load_artifact(
    saved: dict[str, Any] | tuple[Any, ...] | bytes,
    record: str,
    values: Values,
    *,
    allow_pickle: bool = False,
) -> Any:
    """Return the value that `save_artifact` wrote."""
    if isinstance(saved, (dict, tuple)):
        return saved
    if not isinstance(saved, (bytes, bytearray, memoryview)):
        raise TypeError(f"{record} is a {type(saved).__name__}, not bytes")
    if len(saved) == 0:
        return {}
    value = load_any(saved, record, values, allow_pickle=allow_pickle)
    if not isinstance(value, (tuple, dict)):
        raise compat.SerializeError(f"{record} is a {type(value).__name__}, not a tuple or dict")
    return value


def check_pickle(data: bytes, record: str, budget: Budget) -> int:
    """Check a pickle without unpickling it; return the number of elements in its value."""
    budget.native.set_place(record)
    try:
        elements, depth, contains_itself = _native.scan_pickle(data, budget.native)
    except ValueError as e:
        raise pickle.UnpicklingError(str(e)) from None
    budget.native.set_place("the program")
    if contains_itself:
        raise pickle.UnpicklingError("the pickle has a list or dict that contains itself")
    if depth > budget.limits.depth:
        raise LimitError("depth", record)
    return elements


def load_any(saved: bytes, record: str, values: Values, *, allow_pickle: bool = False) -> Any:
    """Return the value that `torch.save` wrote as `saved`; its cost is charged to `values.budget`.

    With `allow_pickle`, unpickling may run any code. NeedsPickleError if a value needs the option.
    """
    reader = _native.GraphDecoder(CLASSES, values, {})
    budget = values.budget

    def fake_tensor(meta: bytes, is_parameter: bool) -> Any:
        text = bytes(meta)
        budget.charge(len(text), record)
        document = SCHEMA.read(text, "TensorMeta", budget.native)
        made = reader.part("tensor", document, None)
        return torch.nn.Parameter(made) if is_parameter else made

    try:
        archive = SavedRecords(saved, record, budget)
        elements = check_pickle(archive.get_record("data.pkl"), record, budget)
        if elements > budget.limits.elements:
            raise LimitError("elements", record)
        return unpickling.load_with(
            fake_tensor, archive, values.location, lambda size: budget.charge(size, record)
        )
    except unpickling.InvalidTensorError as e:
        raise compat.SerializeError(f"{record} is damaged: {e}") from e
    except OF_WRONG_VALUES as e:
        if isinstance(e, LimitError) or not is_about_input(e):
            raise
        if not allow_pickle:
            raise _refusal(saved, record, e) from printable_error(e)
        with damage_is_named(record):
            return unpickling.unpickle_with(fake_tensor, io.BytesIO(saved), values.location)


def _refusal(saved: bytes, record: str, error: Exception) -> compat.SerializeError:
    """Return NeedsPickleError for an undamaged pickle that torch refuses, else SerializeError."""
    if not _is_only_refused(saved, error):
        return compat.SerializeError(f"{record} is damaged: {error!r}")
    found = _GLOBAL.search(str(error))
    return NeedsPickleError(
        f"{record} cannot be read without unpickling it, which may run any code; "
        f"pass allow_pickle=True to permit that. {error}",
        record,
        found[1] if found else "",
    )


def _is_only_refused(saved: bytes, error: Exception) -> bool:
    """Return whether the bytes of `torch.save` are undamaged, and only their pickle was refused."""
    data = bytes(saved)
    try:
        if data.startswith(b"PK"):
            archive = _native.ArchiveReader(data, 0)
            _, _, size, crc, is_deflated = archive.records()["data.pkl"]
            data = archive.stored_bytes("data.pkl")
            data = inflate(data, size) if is_deflated else data
            if not isinstance(error, pickle.UnpicklingError) or _native.crc32(data) != crc:
                return False
        elif not data.startswith(pickle.PROTO):  # older torch wrote pickles without a zip file
            return False
        for _ in pickletools.genops(data):
            pass
    except OF_WRONG_VALUES:
        return False
    return True


def unpack(data: bytes, size: int, place: str, budget: Budget) -> bytes:
    """Inflate `data` to `size` bytes; LimitError if `budget` does not allow them."""
    budget.charge(2 * size, place)  # zlib joins parts of its result, so it needs the memory twice
    return inflate(data, size)


class SavedRecords:
    """A replacement for torch's zip reader in `torch.load`, which checks the sizes of records."""

    def __init__(self, saved: bytes, place: str, budget: Budget) -> None:
        self._native = _native.ArchiveReader(saved, 0)
        self._records = self._native.records()
        self._place = place
        self._budget = budget
        self._read: set[str] = set()

    def get_all_records(self) -> list[str]:
        """Return the names of the records."""
        return list(self._records)

    def has_record(self, name: str) -> bool:
        """Return whether the file contains a record."""
        # If `torch.load` found ".format_version", it would compute offsets, perhaps wrong ones.
        return name in self._records and name != ".format_version"

    def serialization_id(self) -> str:
        """Return "" as the file's id, which torch only logs."""
        return ""

    def get_record(self, name: str) -> bytes:
        """Return the bytes of a record."""
        _, _, size, _, is_deflated = self._records[name]
        place = f"{self._place}: record {name!r}"
        if name in self._read:  # the budget includes one copy of each record
            self._budget.charge(size, place)
        self._read.add(name)
        data: bytes = self._native.stored_bytes(name)
        return unpack(data, size, place, self._budget) if is_deflated else data

    def get_record_offset(self, name: str) -> int:
        """Return the offset of a record's stored bytes in the file; KeyError if it is missing."""
        return int(self._records[name][0])

    def get_storage_from_record(self, name: str, size: int, _kind: Any) -> torch.Tensor:
        """Return the bytes of a record as a uint8 tensor of `size` elements."""
        _, _, found, _, is_deflated = self._records[name]
        if found != size:
            raise ValueError(f"record {name!r} has {found} bytes, not {size}")
        if is_deflated or name in self._read:
            if data := bytearray(self.get_record(name)):
                return torch.frombuffer(data, dtype=torch.uint8)
            return torch.empty(0, dtype=torch.uint8, device="cpu")
        self._read.add(name)
        try:
            made = torch.empty(size, dtype=torch.uint8, device="cpu")
        except RuntimeError:
            with named_lack_of_memory(f"{self._place}: record {name!r} with {size} bytes"):
                raise
        self._native.copy_stored(name, size, made.data_ptr())
        return made

"""Find all faults in the bytes of a file, without torch; `fxpress.load` finds only the first."""

from __future__ import annotations

import functools
import importlib.metadata
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fxpress._files.format import fields, names
from fxpress._files.format import stored as stored_files
from fxpress._files.format.package import InspectionError, Package, memory_for
from fxpress._files.format.tensor_header import NUMBER
from fxpress._files.format.tensors import dtype_of
from fxpress._files.format.torch_facts import allowed_names, operators, refusal_text, torch_version
from fxpress._files.format.views import View
from fxpress._files.format.weights_location import read_place
from fxpress._tools.inspect.checkpoints import read_tensor_header
from fxpress._tools.inspect.hashes import Further
from fxpress._tools.inspect.program import nodes_of, refused_operators
from fxpress._tools.inspect.summary import ARCHIVE, kind_of, model_records

_MAJOR = 8  # the major version of the schema that fxpress reads
_OBJECT = "it is an object: loading needs allow_pickle=True, which may run any code"
_PICKLED = "it is a pickle, which is not opened here: loading may need allow_pickle=True"
_LIBRARIES, _HIGHER_ORDER = "torch.ops.", "higher_order"

Found = Iterator[tuple[str, bool]]  # the text of a fault or note, and whether it is a note


class Fault(NamedTuple):
    """A fault of a file, or a requirement for loading the file."""

    record: str  # the record with the fault; empty for the entire file
    text: str  # the description
    # Whether the entry is a requirement (a library, a permission, another file) and not a fault.
    is_note: bool = False


def check_file(
    path: str | bytes | os.PathLike[str],
    report: Callable[[int], None] | None = None,
    further: Further | None = None,
    allow_operators: Iterable[str] = (),
) -> list[Fault]:
    """Return the faults in the bytes of a file, and what loading it requires."""
    faults: list[Fault] = []
    try:
        with Package(path) as package:
            _Checks(package, faults, path, further, allow_operators).run(report)
    except InspectionError as e:
        faults.append(Fault("", str(e)))
    return faults


class _Checks:
    """Collects the faults of a file; an unreadable part is a fault, after which checks continue."""

    def __init__(
        self,
        package: Package,
        faults: list[Fault],
        path: str | bytes | os.PathLike[str],
        further: Further | None,
        allow_operators: Iterable[str],
    ) -> None:
        self._package, self._faults, self._path = package, faults, path
        self._further, self._allowed = further, allowed_names(allow_operators)
        self._damaged: set[str] = set()
        self._zeros: dict[str, int] = {}  # empty record -> bytes of zeros that a load creates

    def run(self, report: Callable[[int], None] | None) -> None:
        damaged = self._package.damaged_records(report)
        self._damaged = set(damaged)
        self._faults += [Fault(record, text) for record, text in damaged.items()]
        records = self._package.records
        if kind_of(self._package) == ARCHIVE:
            name, version = names.ARCHIVE_VERSION_PATH, names.ARCHIVE_VERSION_VALUE.encode()
            if self._is_readable(name) and (found := self._package.read(name)) != version:
                self._add(name, f"the version is {found[:40]!r}, expected {version!r}")
            is_compiled = any(record.startswith(names.AOTINDUCTOR_DIR) for record in records)
            if not is_compiled and not model_records(self._package):
                self._add("", "the file does not contain a program")
            for record in records:
                if record.startswith(names.EXTRA_DIR) and record not in self._damaged:
                    self._text(record)
        for model, record in model_records(self._package):
            if record not in self._damaged:
                with self._noting(record), self._package.release_charges():
                    self._program(model, record)

    def _add(self, record: str, text: str, is_note: bool = False) -> None:
        self._faults.append(Fault(record, text, is_note))

    def _add_all(self, record: str, found: Found) -> None:
        with self._noting(record):
            for text, is_note in found:
                self._add(record, text, is_note)

    def _text(self, record: str) -> None:
        with self._noting(record), self._package.release_charges():
            try:
                self._package.read_text(record)
            except UnicodeDecodeError as e:
                self._add(record, f"it is not UTF-8: {e}")

    @contextmanager
    def _noting(self, record: str) -> Iterator[None]:
        """Run a block; report its InspectionError as a fault of a record."""
        try:
            with fields.damage_is_named("it"):
                yield
        except InspectionError as e:
            text = str(e)
            for beginning in (f"record {record!r} is damaged: ", f"record {record!r}: "):
                text = text.removeprefix(beginning)
            self._add(record, text)

    def _is_readable(self, record: str) -> bool:
        """Return whether a record can be read; report a missing record as a fault."""
        if record not in self._package.records:
            self._add(record, "the record is missing")
            return False
        return record not in self._damaged

    def _program(self, model: str, record: str) -> None:
        text = self._package.read(record)
        with self._package.release_charges():
            targets = fields.read_document(text, "ExportedProgram", record, self._package).targets()
        document = fields.parse(text, record, self._package)
        major, minor = (document["schema_version"][each] for each in ("major", "minor"))
        if major != _MAJOR and (major, minor) != (0, 0):
            self._add(record, f"its schema has version {major}.{minor}, expected {_MAJOR}")
        graph, signature = (document["graph_module"][each] for each in ("graph", "signature"))
        self._add_all(record, check_signature(graph, signature))
        self._add_all(record, _check_operators(targets, self._further))
        for target, why in refused_operators(nodes_of(graph, record), self._allowed).items():
            self._add(record, refusal_text(target, why), is_note=True)
        for node in nodes_of(graph, record):
            if sources := fields.expect_object(node["metadata"]).get("from_node"):
                text = b'{"from_node": %b}' % fields.expect_str(sources).encode(
                    errors="surrogatepass"
                )
                with self._noting(record), self._package.release_charges():
                    fields.read_document(
                        text, "NodeSource", f"from_node of {node['target']!r}", self._package
                    )
        wanted: dict[str, set[str]] = {folder: set() for folder in stored_files.FOLDERS}
        for kind, held in map(fields.expect_one_of, signature["input_specs"]):
            if kind in stored_files.STATE:
                is_constant = kind == "buffer" and not held["persistent"]
                folder = "constants" if is_constant else stored_files.STATE[kind].folder
                wanted[folder].add(held[stored_files.STATE[kind].field])
        if kind_of(self._package) != ARCHIVE:
            self._add("", _PICKLED, is_note=True)
            return
        self._is_readable(names.sample_inputs_record(model))
        for folder in stored_files.FOLDERS:
            older = f"{stored_files.FOLDERS[folder]}{model}.pt"
            config = stored_files.config_record(model, folder)
            if older in self._package.records:
                self._add(older, _PICKLED, is_note=True)
            elif self._is_readable(config):
                with self._noting(config):
                    self._state(model, folder, wanted[folder])

    def _state(self, model: str, folder: str, wanted: set[str]) -> None:
        """Check the tensors that the payload config of `folder` describes."""
        config = stored_files.config_record(model, folder)
        is_external = (
            stored_files.has_external_weights(self._package, model) and folder == "weights"
        )
        found: dict[str, dict[str, Any]] = {}
        for stored in stored_files.stored_tensors(self._package, model, folder):
            found[stored.name] = stored.meta or {}
            name = stored.record.removeprefix(stored_files.FOLDERS[folder])
            if stored.meta is None and not stored.is_pickled:
                self._add(config, f"{stored.name!r} has no tensor_meta, and is not pickled")
            if name.startswith(names.OBJECTS) and folder == "constants":
                self._add(stored.record, _OBJECT, is_note=True)
            elif folder == "constants" and not name.startswith(names.TENSOR_CONSTANT):
                self._add(config, f"{stored.name!r} is neither a tensor nor an object: {name!r}")
            elif stored.is_pickled and not is_external:
                self._add(stored.record, _PICKLED, is_note=True)
            if not is_external and stored.record not in self._damaged:
                self._stored(config, stored)
        place = names.weights_file_record(model)
        if is_external and self._is_readable(place):
            text = self._package.read_text(place)
            self._add_all(place, _check_weights_file(self._path, text, found))
        self._faults += [Fault(config, f"{n!r} is missing") for n in sorted(wanted - set(found))]

    def _stored(self, config: str, stored: stored_files.StoredTensor) -> None:
        """Check the record of a tensor that the record `config` lists; faults name `config`."""
        with self._noting(config), fields.damage_is_named(f"{stored.name!r}"):
            record = self._package.records.get(stored.record)
            if record is None:
                self._add(config, f"{stored.name!r}: its record {stored.record!r} is missing")
            elif not stored.is_pickled and stored.meta is not None:
                needed = 0 if stored.is_meta() else View(*stored.place()).bytes
                if record.size == 0:  # a tensor without memory, which is read as zeros
                    self._zeros[stored.record] = max(needed, self._zeros.get(stored.record, 0))
                    if sum(self._zeros.values()) > memory_for(self._package.bytes):
                        self._zeros.clear()  # so that the fault is reported once
                        self._add(config, "its empty records represent too many zeros")
                elif needed > record.size:
                    short = f"its record {stored.record!r} has {record.size}"
                    self._add(config, f"{stored.name!r}: it needs {needed} bytes, but {short}")


def _check_operators(targets: Iterable[str], further: Further | None) -> Found:
    """Yield operators not in `torch.json`: faults if the installed torch lacks them, else notes."""
    for target in sorted(set(targets).difference(operators())):
        library = target.removeprefix(_LIBRARIES).partition(".")[0]
        is_torchs = not target.startswith((_LIBRARIES, "#")) or library in _namespaces()
        if is_torchs and _is_installed():
            yield f"torch {torch_version()} has no {target!r}", False
        elif is_torchs:
            yield f"torch {torch_version()} has no {target!r}; another release may have it", True
        elif further is None or not further([target]):
            yield f"{target!r} is not torch's: import its library before you load the file", True


@functools.cache
def _namespaces() -> frozenset[str]:
    """Return the namespaces in which only torch registers operators."""
    found = {name.split(".")[2] for name in operators() if name.startswith(_LIBRARIES)}
    return frozenset(found - {_HIGHER_ORDER})


@functools.cache
def _is_installed() -> bool:
    """Return whether `torch.json` describes the installed release of torch."""
    try:
        installed = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return False
    return installed.split(".")[:2] == torch_version().split(".")[:2]


def check_signature(graph: dict[str, Any], signature: dict[str, Any]) -> Found:
    """Yield the inputs and outputs in which a signature differs from its graph."""
    inputs, outputs = (fields.expect_list(graph[each]) for each in ("inputs", "outputs"))
    ins, outs = (
        list(map(fields.expect_one_of, fields.expect_list(signature[f"{n}_specs"])))
        for n in ("input", "output")
    )
    for what, values, specs in (("input", inputs, ins), ("output", outputs, outs)):
        if len(values) != len(specs):
            yield f"the graph has {len(values)} {what}s, but the signature {len(specs)}", False
            return
        for number, (value, (kind, held)) in enumerate(zip(values, specs, strict=True)):
            expected = _name_of(held.get("arg", held), kind)
            name = _name_of(value, "")
            if None not in (expected, name) and expected != name:
                text = f"graph.{what}s[{number}] is {name!r}, but {expected!r} in the signature"
                yield text, False
    named: dict[str, set[Any]] = {"user_input": set()}
    for kind, held in ins:
        if kind == "user_input":
            named[kind].add(_name_of(held["arg"], kind))
        elif kind in stored_files.STATE:
            named.setdefault(kind, set()).add(held[stored_files.STATE[kind].field])
    for kind, held in outs:
        of = kind.removesuffix("_mutation")
        targets = [value for key, value in fields.expect_object(held).items() if key != "arg"]
        if of != kind and not named.get(of, set()).issuperset(targets):
            yield f"the program writes {targets[0]!r}, which is not a {of.replace('_', ' ')}", False


def _name_of(argument: Any, kind: str) -> str | None:
    """Return the name of the value in an argument; None for constants."""
    if type(argument) is not dict or kind == "constant_input":
        return argument.get("name") if type(argument) is dict else None
    if type(argument.get("name")) is str:
        return str(argument["name"])
    _, held = fields.expect_one_of(argument)
    if type(held) is dict:
        name = held.get("name", held.get("as_name"))
        return name if type(name) is str else None
    return None


def _check_weights_file(
    archive: str | bytes | os.PathLike[str], text: str, wanted: Mapping[str, dict[str, Any]]
) -> Found:
    """Yield the faults of the sidecar file that a record names; weights are not read."""
    if not text:
        yield "the weights were not saved: loading needs load_weights=False", True
        return
    try:
        name, number = read_place(text)
        path = Path(os.path.realpath(os.fsdecode(archive))).with_name(name)
        metadata, places = read_tensor_header(path)
    except (OSError, ValueError) as e:
        yield f"{e.filename}: {e.strerror}" if isinstance(e, OSError) else str(e), False
        return
    if metadata.get(NUMBER) != number:
        yield f"{path} belongs to another archive, or to another save of this archive", False
    for weight, meta in wanted.items():
        place = places.get(weight)
        if place is None:
            yield f"{path} has no {weight!r}", False
            continue
        dtype, _ = dtype_of(fields.expect_int(meta["dtype"]))
        sizes = tuple(size.get("as_int") for size in meta["sizes"])
        if (place.dtype, place.shape) != (dtype, sizes):
            found = f"{place.dtype}{list(place.shape)}"
            yield f"{path}: {weight!r} is {found} instead of {dtype}{list(sizes)}", False

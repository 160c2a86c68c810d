"""Find all that is wrong with a file, without torch; `fxpress.load` stops at the first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fxpress._files.format.documents import read_document
from fxpress._files.format.fields import a_list, a_text, an_object, damage_is_named, one_of, parse
from fxpress._files.format.package import InspectionError, Package, memory_for
from fxpress._files.format.stored import (
    FOLDERS,
    STATE,
    StoredTensor,
    config_record,
    is_beside,
    stored_tensors,
    weights_file_record,
)
from fxpress._files.format.views import View
from fxpress._tools.inspect.arguments import bodies_in, values_in
from fxpress._tools.inspect.checks_of_metadata import Metadata
from fxpress._tools.inspect.checks_of_operators import check_operators
from fxpress._tools.inspect.checks_of_pickles import check_pickle
from fxpress._tools.inspect.checks_of_ranges import check_ranges
from fxpress._tools.inspect.checks_of_signature import check_signature, check_verifiers
from fxpress._tools.inspect.checks_of_tensors import check_tensor, check_type
from fxpress._tools.inspect.checks_of_trees import check_tree
from fxpress._tools.inspect.checks_of_weights_file import check_weights_file
from fxpress._tools.inspect.findings import Fault, Found
from fxpress._tools.inspect.modules import DeepModulesError
from fxpress._tools.inspect.program import nodes_of, read_program
from fxpress._tools.inspect.summary import ARCHIVE, COMPILED, kind_of, model_records
from fxpress._tools.inspect.uses_of_expressions import Uses

_VERSION = ("archive_version", b"0")
_MAJOR = 8  # of the schema
_EXTRA = "extra/"
_CONSTANT, _OBJECTS = "tensor_", ("custom_obj_", "opaque_obj_")
_OBJECT = "an object: a load takes allow_pickle=True, which may run any code"
_PICKLED = "a pickle, which is not opened here: a load may take allow_pickle=True"


def look_at(
    path: str | os.PathLike[str], report: Callable[[int], None] | None = None
) -> list[Fault]:
    """Return what is wrong with a file and what a load of it takes; nothing of it runs.

    Every record is read and compared with its checksum. The texts of programs are compared with
    torch's schema; each value is computed once, before it is used, and described; the signature
    tells of the graph's inputs and results; operators are torch's; the state has an entry for each
    weight, and records, or a file beside, that are there and long enough. docs/guides/look.md lists
    what only a load finds: pickles are not opened, and expressions not calculated.

    Args:
        path: the file.
        report: called with the bytes that were read since the last call.

    Raises:
        OSError: the file cannot be read.
    """
    faults: list[Fault] = []
    try:
        with Package(path) as package:
            _Search(package, faults, path).run(report)
    except InspectionError as e:
        faults.append(Fault("", str(e)))
    return faults


class _Search:
    """Looks for faults; what was found stays when something else cannot be looked at."""

    def __init__(self, package: Package, faults: list[Fault], path: str | os.PathLike[str]) -> None:
        self._package, self._faults, self._path = package, faults, path
        self._damaged: set[str] = set()
        self._zeros: dict[str, int] = {}  # bytes of records without any

    def run(self, report: Callable[[int], None] | None) -> None:
        damaged = self._package.damaged_records(report)
        self._damaged = set(damaged)
        self._faults += [Fault(record, text) for record, text in damaged.items()]
        records = self._package.records
        if kind_of(self._package) == ARCHIVE:
            name, version = _VERSION
            if self._is_there(name) and self._package.read(name) != version:
                found = self._package.read(name)
                self._add(name, f"the version is {found[:40]!r}, not {version!r}")
            is_compiled = any(record.startswith(COMPILED) for record in records)
            if not is_compiled and not model_records(self._package):
                self._add("", "there is no program in it")
            for record in records:
                if record.startswith(_EXTRA) and record not in self._damaged:
                    self._text(record)
        for model, record in model_records(self._package):
            if record not in self._damaged:
                with self._noting(record), self._package.giving_back():
                    self._program(model, record)

    def _add(self, record: str, text: str, is_note: bool = False) -> None:
        self._faults.append(Fault(record, text, is_note))

    def _add_all(self, record: str, found: Found, place: str = "") -> None:
        with self._noting(record):
            for text, is_note in found:
                self._add(record, f"{place}{text}", is_note)

    def _text(self, record: str) -> None:
        with self._noting(record), self._package.giving_back():
            try:
                self._package.read(record).decode()
            except UnicodeDecodeError as e:
                self._add(record, f"it is not UTF-8: {e}")

    @contextmanager
    def _noting(self, record: str) -> Iterator[None]:
        """Return a block in which an InspectionError is a fault of a record."""
        try:
            with damage_is_named("it"):
                yield
        except InspectionError as e:
            beginnings = (f"record {record!r} is damaged: ", f"record {record!r}: ")
            text = str(e)
            for beginning in beginnings:
                text = text.removeprefix(beginning)
            self._add(record, text)

    def _is_there(self, record: str) -> bool:
        """Return whether a record can be read; a missing one is a fault."""
        if record not in self._package.records:
            self._add(record, "the record is missing")
            return False
        return record not in self._damaged

    def _program(self, model: str, record: str) -> None:
        text = self._package.read(record)
        with self._package.giving_back():
            read_document(text, "ExportedProgram", record, self._package)
        document = parse(text, record, self._package)
        module = document["graph_module"]
        graph, signature = module["graph"], module["signature"]
        major, minor = (document["schema_version"][each] for each in ("major", "minor"))
        if major != _MAJOR and (major, minor) != (0, 0):
            self._add(record, f"its schema is of version {major}.{minor}, not {_MAJOR}")
        with self._noting(record), suppress(DeepModulesError):
            read_program(document, model, record, None)
        self._add_all(record, check_signature(graph, signature))
        with self._noting(record):
            self._add_all(record, check_verifiers(a_list(document.get("verifiers") or [])))
        with self._noting(record):
            nodes = nodes_of(graph, f"record {record!r}")
            self._add_all(record, check_operators({a_text(n["target"]): None for n in nodes}))
        with self._noting(record):
            for entry in a_list(module["module_call_graph"]):
                for spec in ("in_spec", "out_spec"):
                    call = entry["signature"]
                    if call is not None and call[spec]:
                        self._add_all(record, check_tree(a_text(call[spec]), spec == "in_spec"))
        ranges = an_object(document.get("range_constraints") or {})
        left = self._package.memory_left
        uses, metadata = Uses(ranges, left), Metadata(left)
        with self._noting(record):
            self._graph(record, graph, "graph", uses, metadata)
        self._add_all(record, check_ranges(ranges))
        if uses.found:
            # Most programs have none, and its modules take some time to be imported.
            from fxpress._tools.inspect.checks_of_expressions import check_expressions

            self._add_all(record, check_expressions(uses))
        wanted: dict[str, set[str]] = {folder: set() for folder in FOLDERS}
        with self._noting(record):
            for kind, held in map(one_of, signature["input_specs"]):
                if kind in STATE:
                    is_constant = kind == "buffer" and not held["persistent"]
                    folder = "constants" if is_constant else STATE[kind].folder
                    wanted[folder].add(held[STATE[kind].field])
        if kind_of(self._package) != ARCHIVE:
            self._add("", _PICKLED, is_note=True)
            return
        samples = f"data/sample_inputs/{model}.pt"
        if self._is_there(samples):
            self._examples(samples)
        for folder in FOLDERS:
            older = f"data/{folder}/{model}.pt"
            config = config_record(model, folder)
            if older in self._package.records:
                self._add(older, _PICKLED, is_note=True)
                self._pickle(older)
            elif self._is_there(config):
                with self._noting(config):
                    self._state(model, folder, wanted[folder])

    def _graph(self, record: str, graph: Any, place: str, uses: Uses, metadata: Metadata) -> None:
        """Look for values that are used before they are computed, or not described."""
        tensors = an_object(graph["tensor_values"])
        known: set[str] = set()
        for _, name in values_in(graph["inputs"]):
            if name in known:
                self._add(record, f"{place}.inputs: {name!r} is an input twice")
            known.add(name)
        for number, node in enumerate(a_list(graph["nodes"])):
            at = f"{place}.nodes[{number}]"
            self._add_all(record, metadata.check(an_object(node["metadata"])), f"{at}: ")
            with self._noting(record):
                uses.note_operator(a_text(node["target"]))
                for argument in node["inputs"]:
                    for _, name in values_in(argument["arg"]):
                        if name not in known:
                            what = f"{a_text(node['target'])} takes {name!r}"
                            self._add(record, f"{at}: {what}, which is not computed")
                    for body_number, body in enumerate(bodies_in(argument["arg"])):
                        inside = f"{at}.{argument['name'] or 'body'}[{body_number}]"
                        with self._noting(record):
                            self._graph(record, body, inside, uses, metadata)
            with self._noting(record):
                for is_tensor, name in values_in(node["outputs"]):
                    if name in known:
                        self._add(record, f"{at}: {name!r} is computed twice")
                    elif is_tensor and name not in tensors:
                        self._add(record, f"{at}: the tensor {name!r} is not described")
                    known.add(name)
        for _, name in values_in(graph["outputs"]):
            if name not in known:
                self._add(record, f"{place}.outputs: {name!r} is not computed")
        for name, meta in tensors.items():
            if name in known:  # a load reads nothing of others
                at = f"{place}.tensor_values[{name!r}]: "
                self._add_all(record, check_tensor(meta), at)
        with self._noting(record):
            uses.note_graph(graph, known, place)

    def _examples(self, record: str) -> None:
        """Look at example inputs, which a load leaves out where it does not open them."""
        with self._noting(record), self._package.giving_back():
            saved = self._package.read(record)
            for text, is_note in check_pickle(saved, self._package.memory_left) if saved else ():
                said = f"a load leaves the example inputs out, or takes allow_pickle=True: {text}"
                self._add(record, said if is_note else text, is_note)

    def _pickle(self, record: str) -> None:
        """Look at state that is a pickle, of which only the limits are known."""
        with self._noting(record), self._package.giving_back():
            saved = self._package.read(record)
            found = check_pickle(saved, self._package.memory_left) if saved else iter(())
            self._add_all(record, (each for each in found if not each[1]))

    def _state(self, model: str, folder: str, wanted: set[str]) -> None:
        """Look at the tensors that a config describes."""
        config = config_record(model, folder)
        beside = is_beside(self._package, model) and folder == "weights"
        found: dict[str, dict[str, Any]] = {}
        for stored in stored_tensors(self._package, model, folder):
            found[stored.name] = stored.meta or {}
            name = stored.record.removeprefix(f"data/{folder}/")
            if stored.meta is None and not stored.is_pickled:
                self._add(config, f"{stored.name!r} is not described")
            elif stored.meta is not None:
                self._add_all(config, check_type(stored.meta), f"{stored.name!r}: ")
            if name.startswith(_OBJECTS) and folder == "constants":
                self._add(stored.record, _OBJECT, is_note=True)
            elif folder == "constants" and not name.startswith(_CONSTANT):
                self._add(config, f"{stored.name!r} is of no known kind: {name!r}")
            elif stored.is_pickled and not beside:
                self._add(stored.record, _PICKLED, is_note=True)
                if stored.record in self._package.records:
                    self._pickle(stored.record)
            if not beside and stored.record not in self._damaged:
                self._stored(config, stored)
        place = weights_file_record(model)
        if beside and self._is_there(place):
            text = self._package.read(place).decode()
            self._add_all(place, check_weights_file(self._path, text, found))
        self._faults += [Fault(config, f"{n!r} is missing") for n in sorted(wanted - set(found))]

    def _stored(self, config: str, stored: StoredTensor) -> None:
        """Look at the record of a tensor."""
        with self._noting(config), damage_is_named(f"{stored.name!r}"):
            record = self._package.records.get(stored.record)
            if record is None:
                self._add(config, f"{stored.name!r}: its record {stored.record!r} is missing")
            elif not stored.is_pickled and stored.meta is not None:
                needed = 0 if stored.is_meta() else View(*stored.place()).bytes
                if record.size == 0:  # zeros, which torch does not write
                    self._zeros[stored.record] = max(needed, self._zeros.get(stored.record, 0))
                    self._check_zeros(config)
                elif needed > record.size:
                    short = f"its record {stored.record!r} has {record.size}"
                    self._add(config, f"{stored.name!r}: it needs {needed} bytes, but {short}")

    def _check_zeros(self, config: str) -> None:
        if sum(self._zeros.values()) > memory_for(self._package.bytes):
            self._zeros.clear()  # it is said once
            self._add(config, "its records without bytes stand for too many zeros")

"""Hash the programs of a file; the hashes equal `fxpress.graph_hash` of the loaded programs."""

from __future__ import annotations

import hashlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fxpress._files.format import torch_facts
from fxpress._files.format.fields import damage_is_named, expect_one_of, parse, read_document
from fxpress._files.format.package import InspectionError, Package, memory_for
from fxpress._files.format.recognition import format_of_records
from fxpress._files.format.stored import (
    STATE,
    StoredTensor,
    config_record,
    has_external_weights,
    stored_tensors,
)
from fxpress._files.format.views import View
from fxpress._tools.inspect.summary import kind_of, model_records

_DIGEST = 32  # bytes of a hash
_OPERATORS = "torch.ops."
_NAMES = 120  # the maximum characters of an operator's name in an error
# A function that returns {name: traits} for names of operators, and omits unknown names.
Further = Callable[[Sequence[str]], dict[str, torch_facts.Traits]]
_STRIDED = 7  # the number of torch.strided in files


class UnknownOperatorError(InspectionError):
    """A program calls an operator that neither torch nor an imported library defines."""


class HashedText(NamedTuple):
    """The JSON text of a program, with its hashes."""

    text: bytes
    hash: bytes  # the hash of the program
    values: dict[str, bytes]  # the hash of each constant by name
    nodes: bytes  # the hashes of the nodes of the top-level graph, concatenated


def hash_programs(
    path: str | bytes | os.PathLike[str],
    *,
    include_state: bool = False,
    further: Further | None = None,
    allow_operators: Iterable[str] = (),
) -> list[tuple[str, str]]:
    """Return name and hash of each program in a file; InspectionError for a damaged file.

    `further` returns the traits of operators that are not torch's. If it does not know an operator,
    raise UnknownOperatorError. If an operator needs `allow_operators`, raise InspectionError.
    """
    allowed = torch_facts.allowed_names(allow_operators)
    with Package(path) as package:
        kind_of(package)
        found = model_records(package)
        if not found:
            other = format_of_records(package.records)
            lacks = "the file does not contain an exported program"
            raise InspectionError(lacks if other is None else other.text())
        return [
            (name, _hashed(package, name, record, include_state, further, allowed).hash.hex())
            for name, record in found
        ]


def hash_text(
    path: str | bytes | os.PathLike[str],
    model: str,
    further: Further | None = None,
    allow_operators: Iterable[str] = (),
) -> HashedText | None:
    """Return a program's text and hashes; None for an unknown name. Errors: see `hash_programs`."""
    with Package(path) as package:
        kind_of(package)
        record = dict(model_records(package)).get(model)
        allowed = torch_facts.allowed_names(allow_operators)
        return None if record is None else _hashed(package, model, record, False, further, allowed)


def hash_nodes(path: str | bytes | os.PathLike[str]) -> dict[str, tuple[str, list[bytes]]]:
    """Return program -> (hash, hashes of the root graph's nodes); errors as in `hash_programs`."""
    with Package(path) as package:
        found = {}
        for name, record in model_records(package):
            hashed = _hashed(package, name, record, False)
            found[name] = (hashed.hash.hex(), split_digests(hashed.nodes))
    return found


def split_digests(digests: bytes) -> list[bytes]:
    """Split concatenated hashes into a list."""
    return [digests[i : i + _DIGEST] for i in range(0, len(digests), _DIGEST)]


def unregistered_text(name: str) -> str:
    """Return the error text for an unregistered operator or class in a file."""
    module = "" if name.startswith("#") else name.rpartition(".")[0]
    if name.startswith(_OPERATORS):
        module = name.split(".")[2]
        if not module.isidentifier() or importlib.util.find_spec(module) is None:
            module = f"MODULE, which registers operators of `{module[:_NAMES]}`"
    module = module or "MODULE, which registers it"
    return f"`{name[:_NAMES]}` is not registered; use --import {module}"


def _hashed(
    package: Package,
    model: str,
    record: str,
    include_state: bool,
    further: Further | None = None,
    allowed: frozenset[str] | None = None,
) -> HashedText:
    """Hash a program; InspectionError if it calls an operator that is not `allowed`."""
    text = package.read(record)
    document = read_document(text, "ExportedProgram", record, package)
    known = torch_facts.operators()
    with damage_is_named(f"record {record!r}"):
        targets = document.targets()
        traits = {target: known[target] for target in targets if target in known}
        if further is not None:
            traits.update(further([target for target in targets if target not in known]))
        for target in targets:
            if allowed is not None and (why := torch_facts.refusal(target, allowed)) is not None:
                message = torch_facts.refusal_text(target, why, "--allow-operator {}")
                raise InspectionError(f"program {model!r}: {message}")
            if target not in traits:
                raise UnknownOperatorError(f"program {model!r}: {unregistered_text(target)}")
        digests = _Digests(package).of_program(model, text, record, include_state)
        try:
            whole, nodes = document.hash(traits, digests)
            return HashedText(text, whole, digests, nodes)
        except (AssertionError, RuntimeError) as e:  # RuntimeError: a name that is not a string
            raise InspectionError(f"record {record!r} is damaged: {e}") from None


class _Digests:
    """Hashes tensors in a file; the file's size limits the cost."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._left = memory_for(package.bytes)

    def of_program(
        self, model: str, text: bytes, record: str, include_state: bool
    ) -> dict[str, bytes]:
        """Return name -> hash of each value on which the hash of a program depends."""
        constants = {each.name: each for each in stored_tensors(self._package, model, "constants")}
        specs = parse(text, record, self._package)["graph_module"]["signature"]["input_specs"]
        inputs = list(map(expect_one_of, specs))
        buffers = {held[STATE[kind].field] for kind, held in inputs if kind == "buffer"}
        needed = {held[STATE[kind].field] for kind, held in inputs if kind == "tensor_constant"}
        needed |= {held["custom_obj_name"] for kind, held in inputs if kind == "custom_obj"}
        missing = needed - set(constants)
        if missing:
            raise InspectionError(
                f"the constant {min(missing)!r} is in a pickle, which only torch can read"
            )
        found = [each for n, each in constants.items() if include_state or n not in buffers]
        if include_state:
            if config_record(model, "weights") not in self._package.records:
                raise InspectionError("the weights are in a pickle, which only torch can read")
            if has_external_weights(self._package, model):
                raise InspectionError(
                    "the values of the weights are in another file, or were not saved: "
                    "load the program in Python and call fxpress.graph_hash"
                )
            found += stored_tensors(self._package, model, "weights")
        return {each.name: self._of(each) for each in found}

    def _of(self, stored: StoredTensor) -> bytes:
        """Hash a tensor: its dtype, its sizes, and its elements in order."""
        with damage_is_named(f"the tensor {stored.name!r}"):
            meta = stored.meta
            if meta is None or stored.is_pickled or meta["layout"] != _STRIDED or stored.is_meta():
                raise InspectionError(
                    f"{stored.name!r} has a type or layout that only torch can hash"
                )
            itemsize, sizes, strides, start = stored.place()
            record = self._package.records.get(stored.record)
            size = math.prod(sizes) * itemsize
            self._left -= size + (0 if record is None else record.size)
            if self._left < 0:
                raise InspectionError(f"{stored.name!r} exceeds the limit for hashing this file")
            head = f"(torch.{torch_facts.BY_NUMBER[meta['dtype']].name}, {sizes}, torch.strided)"
            made = hashlib.blake2b(head.encode(), digest_size=_DIGEST)
            view = View(itemsize, sizes, strides, start)
            for part in view.parts(self._package.read(stored.record)):
                made.update(part)
        return made.digest()

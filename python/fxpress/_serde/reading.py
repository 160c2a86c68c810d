"""An exported program from bytes."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram

from fxpress import _native
from fxpress import _torch_compat_serde as compat
from fxpress._errors import UnsupportedError
from fxpress._serde.artifacts import load_artifact
from fxpress._serde.checks import to_check
from fxpress._serde.facts import deserialize_range_constraints
from fxpress._serde.schema import CLASSES, SCHEMA
from fxpress._serde.values import Location, Values

log = logging.getLogger("fxpress")


def check_version(version: Any, skip: bool) -> None:
    """SerializeError for the schema of another major version."""
    current = compat.schema.SCHEMA_VERSION
    unversioned = version.major == 0 and version.minor == 0
    if version.major != current[0] and not unversioned and not skip:
        raise compat.SerializeError(
            f"Serialized schema version {version} does not match our current schema version "
            f"{current}."
        )


def _load_examples(saved: Any, values: Values, allow_pickle: bool) -> Any:
    """The example inputs; None when there are none, or when they would have to be unpickled."""
    if saved is None or len(saved) == 0:
        return None
    try:
        return load_artifact(saved, "example_inputs", values, allow_pickle=allow_pickle)
    except compat.SerializeError as e:
        log.warning("The example inputs are left out: %s", e)
        return None


def _is_valid(root: torch.fx.GraphModule, fields: dict[str, Any]) -> bool:
    """True when torch's verifier has nothing to say against the program for sure."""
    checked = to_check(root, fields["verifiers"], fields["state_dict"], fields["constants"])
    return checked is not None and _native.is_surely_valid(
        fields["graph_signature"], fields["module_call_graph"], checked
    )


@dataclasses.dataclass
class Decoded:
    """What a document of the type ExportedProgram has, the reader and what it knows of numbers."""

    reader: _native.GraphReader
    values: Values
    graph_module: torch.fx.GraphModule
    signature: Any
    calls: list[Any]
    state_dict: Any
    constants: Any
    example_inputs: Any


def decode_graph_module(
    document: _native.Document,
    ranges: Mapping[str, tuple[Any, Any]],
    state_dict: Any,
    constants: Any,
    example_inputs: Any,
    allow_pickle: bool,
    location: Location = None,
) -> Decoded:
    """The graph of a program and what belongs to it.

    Args:
        document: of the type ExportedProgram.
        ranges: symbol or expression -> (lowest, highest) value; None: no limit.
        state_dict: bytes, or a dict; likewise `constants` and `example_inputs`.
        location: where what is read goes, see `Values`.
    """
    values = Values(dict(ranges), location)

    def load(saved: Any, record: str) -> Any:
        return load_artifact(saved, record, values, allow_pickle=allow_pickle)

    objects = load(constants, "constants")
    examples = _load_examples(example_inputs, values, allow_pickle)
    reader = _native.GraphReader(CLASSES, values, objects)
    with compat.without_modes(), compat.module_inputs(examples):
        root, signature, calls, has_objects = reader.program(document)
    if has_objects:  # objects have no source text: torch says so, and makes a module without
        root = compat.create_graph_module(root, root.graph)
    if custom := document.field(CLASSES, "graph_module.metadata").get("custom"):
        root.meta["custom"] = json.loads(custom)
    named_tuples = document.field(CLASSES, "graph_module.treespec_namedtuple_fields")
    root.meta["treespec_namedtuple_fields"] = {
        name: definition.field_names for name, definition in named_tuples.items()
    }
    state = load(state_dict, "state_dict")
    return Decoded(reader, values, root, signature, calls, state, objects, examples)


@contextmanager
def damage_is_named() -> Iterator[None]:
    """Whatever goes wrong with what was read is a SerializeError, or says what it is itself."""
    try:
        yield
    except (compat.SerializeError, UnsupportedError, compat.SpecViolationError):
        raise
    except Exception as e:
        raise compat.SerializeError(f"the program is damaged: {e!r}") from e


@damage_is_named()
def decode(
    document: _native.Document,
    state_dict: Any,
    constants: Any,
    example_inputs: Any = None,
    *,
    allow_pickle: bool = False,
    location: Location = None,
) -> ExportedProgram:
    """The program in a document of the type ExportedProgram."""
    stored = document.field(CLASSES, "range_constraints")
    try:
        ranges = {name: (r.min_val, r.max_val) for name, r in stored.items()}
    except Exception as e:
        raise compat.SerializeError(f"range_constraints are damaged: {e}") from e
    decoded = decode_graph_module(
        document, ranges, state_dict, constants, example_inputs, allow_pickle, location
    )
    root, values = decoded.graph_module, decoded.values
    fields = {
        "graph_signature": decoded.signature,
        "state_dict": decoded.state_dict,
        "range_constraints": deserialize_range_constraints(values.ranges, values.symbols),
        "module_call_graph": decoded.calls,
        "example_inputs": decoded.example_inputs,
        "constants": decoded.constants,
        "verifiers": [compat.load_verifier(v) for v in document.field(CLASSES, "verifiers")],
    }
    is_valid = _is_valid(root, fields)
    guards = document.field(CLASSES, "guards_code")
    return compat.make_program({"root": root, "guards_code": guards, **fields}, is_valid)


def deserialize(
    artifact: compat.SerializedArtifact,
    expected_opset_version: dict[str, int] | None = None,
    *,
    _unsafe_skip_version_check: bool = False,
    allow_pickle: bool = False,
) -> ExportedProgram:
    """The exported program that `serialize` wrote, here or in torch.

    Nothing in the artifact is run while it is read: expressions and tree specs go through parsers
    of fxpress, names are identifiers, and targets of nodes are operators that this process knows.
    Guards become code, as in torch, when `module()` is called. Any number of threads may read at
    once.

    Args:
        artifact: the program as bytes; the other parts as bytes, or as the values themselves.
        expected_opset_version: is not compared, as in torch.
        _unsafe_skip_version_check: takes schemas of another major version.
        allow_pickle: parts that `torch.load(weights_only=True)` does not take are unpickled, which
            may run any code. Without it, example inputs that need it are left out with a warning.

    Raises:
        SerializeError: the bytes are damaged, name something that is not registered, or need
            `allow_pickle`.
        fxpress.UnsupportedError: the program has something that fxpress cannot read.

    Stands in for `torch._export.serde.serialize.deserialize`.
    """
    if not isinstance(artifact.exported_program, bytes):
        raise AssertionError(f"expected bytes, got {type(artifact.exported_program).__name__}")
    with _native.GcPause():  # nothing that is made here is garbage when it is done
        document = SCHEMA.read(artifact.exported_program, "ExportedProgram")
        check_version(document.field(CLASSES, "schema_version"), _unsafe_skip_version_check)
        return decode(
            document,
            artifact.state_dict,
            artifact.constants,
            artifact.example_inputs,
            allow_pickle=allow_pickle,
        )

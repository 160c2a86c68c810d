"""Read an exported program from bytes."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from fxpress import _native
from fxpress._files.format.torch_facts import allowed_names
from fxpress._files.serde import gate
from fxpress._files.serde.artifacts import load_artifact
from fxpress._files.serde.checks import to_check
from fxpress._files.serde.damage import add_left_out_reason, damage_is_named
from fxpress._files.serde.facts import deserialize_range_constraints
from fxpress._files.serde.guards import check_arithmetic
from fxpress._files.serde.limits import Budget, LimitError, Limits, sizes_of
from fxpress._files.serde.schema import CLASSES, SCHEMA
from fxpress._files.serde.values import Location, Values
from fxpress._torch import serde as compat
from fxpress._torch.watching import operation, phase

log = logging.getLogger("fxpress")
_RANGE_BYTES = 1500  # estimated bytes of the Python objects for a symbol's range
_MOST_VERIFIERS = 16


def check_version(version: Any, skip: bool) -> None:
    """Raise SerializeError for a schema of another major version, unless `skip` is true."""
    current = compat.schema.SCHEMA_VERSION
    unversioned = version.major == 0 and version.minor == 0
    if version.major != current[0] and not unversioned and not skip:
        raise compat.SerializeError(
            f"Serialized schema version {version} does not match our current schema version "
            f"{current}."
        )


def _load_examples(saved: Any, values: Values, allow_pickle: bool) -> tuple[Any, str | None]:
    """Return (example inputs, None), or (None, reason) if the example inputs cannot be read."""
    if saved is None or len(saved) == 0:
        return None, None
    try:
        examples = load_artifact(saved, "example_inputs", values, allow_pickle=allow_pickle)
        gate.check_example_inputs(examples, values.budget)
        return examples, None
    except LimitError:
        raise
    except compat.SerializeError as e:
        log.warning("The example inputs are left out: %s", e)
        return None, str(e)


@dataclasses.dataclass
class Decoded:
    """The result of `decode_graph_module`: the decoded parts of a schema's `ExportedProgram`."""

    reader: _native.GraphDecoder
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
    budget: Budget,
    location: Location = None,
    allowed: frozenset[str] = frozenset(),
) -> Decoded:
    """Return the parts of an `ExportedProgram` of the schema.

    State, constants and inputs are values or bytes; with `allow_pickle`, unpickling may run code.
    """
    budget.charge(len(ranges) * _RANGE_BYTES, "range_constraints")
    values = Values(dict(ranges), location, budget, allowed)

    def load(saved: Any, record: str) -> Any:
        loaded = load_artifact(saved, record, values, allow_pickle=allow_pickle)
        if isinstance(loaded, dict):
            gate.check_names("StateName", loaded, record)
        return loaded

    with phase("constants"):
        objects = load(constants, "constants")
    with phase("example inputs"):
        examples, left_out = _load_examples(example_inputs, values, allow_pickle)
    reader = _native.GraphDecoder(CLASSES, values, objects)
    with (
        phase("graph"),
        compat.without_modes(),
        compat.module_inputs(examples),
        add_left_out_reason(left_out),
    ):
        root, signature, calls, has_objects = reader.program(document)
    if has_objects:  # torch omits code that the objects make invalid
        root = compat.create_graph_module(root, root.graph)
    if custom := document.field(CLASSES, "graph_module.metadata").get("custom"):
        place = "the custom metadata of the graph"
        root.meta["custom"] = budget.load_json(custom, place)
    named_tuples = document.field(CLASSES, "graph_module.treespec_namedtuple_fields")
    root.meta["treespec_namedtuple_fields"] = {
        name: definition.field_names for name, definition in named_tuples.items()
    }
    with phase("state"):
        state = load(state_dict, "state_dict")
    return Decoded(reader, values, root, signature, calls, state, objects, examples)


def _verifiers(names: list[str]) -> list[Any]:
    """Return the verifier classes with these dialect names."""
    if len(names) > _MOST_VERIFIERS:
        raise compat.SerializeError(f"expected one verifier, found {len(names)}")
    return [compat.load_verifier(name) for name in names]


@damage_is_named()
def decode(
    document: _native.Document,
    state_dict: Any,
    constants: Any,
    example_inputs: Any = None,
    *,
    budget: Budget,
    allow_pickle: bool = False,
    allowed: frozenset[str] = frozenset(),
    location: Location = None,
) -> ExportedProgram:
    """Return the program in a document; `decode_graph_module` describes the arguments."""
    stored = document.field(CLASSES, "range_constraints")
    with damage_is_named("range_constraints"):
        ranges = {name: (r.min_val, r.max_val) for name, r in stored.items()}
    decoded = decode_graph_module(
        document,
        ranges,
        state_dict,
        constants,
        example_inputs,
        allow_pickle,
        budget,
        location,
        allowed,
    )
    if decoded.calls and decoded.calls[0].fqn:
        raise compat.SerializeError(
            "module_call_graph[0].fqn: expected '', the path of the program itself, found "
            f"{decoded.calls[0].fqn!r}"
        )
    root, values = decoded.graph_module, decoded.values
    fields = {
        "graph_signature": decoded.signature,
        "state_dict": decoded.state_dict,
        "range_constraints": deserialize_range_constraints(values.ranges, values.symbols),
        "module_call_graph": decoded.calls,
        "example_inputs": decoded.example_inputs,
        "constants": decoded.constants,
        "verifiers": _verifiers(document.field(CLASSES, "verifiers")),
    }
    with phase("checks"):
        checked = to_check(root, fields["verifiers"], decoded.state_dict, decoded.constants)
        # False: only torch's verifier can decide.
        is_valid = checked is not None and _native.is_surely_valid(
            decoded.signature, decoded.calls, checked
        )
        guards = document.field(CLASSES, "guards_code")
        call = decoded.calls[0].signature if decoded.calls else None
        names = None if call is None else call.forward_arg_names
        check_arithmetic(guards, decoded.example_inputs, names)
    return compat.make_program({"root": root, "guards_code": guards, **fields}, is_valid)


@operation("serialize.deserialize", lambda made, *_, **__: {"nodes": len(made.graph.nodes)})
def deserialize(
    artifact: compat.SerializedArtifact,
    expected_opset_version: dict[str, int] | None = None,
    *,
    _unsafe_skip_version_check: bool = False,
    allow_pickle: bool = False,
    allow_operators: Iterable[str] = (),
    limits: Limits | None = None,
) -> ExportedProgram:
    """Return the exported program in an artifact that fxpress's or torch's `serialize` wrote.

    Reading does not run code from the artifact unless `allow_pickle` is true. Expressions and tree
    specs are parsed, not evaluated. Names must be identifiers. Targets of nodes must be operators
    that exist in this process. As in torch, `module()` builds code from guards. Any number of
    threads may call this function concurrently.

    Args:
        artifact: the program, as bytes. Its other parts are bytes of `torch.save`, or values.
        expected_opset_version: ignored, as in torch.
        _unsafe_skip_version_check: accept schemas of another major version.
        allow_pickle: unpickle parts that `torch.load(weights_only=True)` rejects, which may run any
            code. Example inputs that cannot be read are left out with a warning.
        allow_operators: operators that this program may call although fxpress refuses them by
            default: names such as "aten.from_file", or namespaces such as "symm_mem".
        limits: the limits on the cost of reading, a `fxpress.archive.Limits`; None: the defaults.

    Raises:
        fxpress.LimitError: reading would exceed the limits; a subclass of SerializeError.
        fxpress.SerializeError: the bytes are damaged, name an operator or class that is not
            registered, or need `allow_pickle` or `allow_operators`. The error is also torch's
            SpecViolationError if torch's verifier rejects the program.
        fxpress.UnsupportedError: fxpress cannot read a part of the program.
        AssertionError: the program is not bytes.
        TypeError: an argument is of a wrong type.

    Stands in for `torch._export.serde.serialize.deserialize`.

    Example:
        >>> from fxpress.serialize import deserialize, serialize
        >>> fxpress.diff(deserialize(serialize(program)), program)
        []
    """
    if not isinstance(artifact, compat.SerializedArtifact):
        raise TypeError(f"expected a SerializedArtifact, got a {type(artifact).__name__}")
    if not isinstance(artifact.exported_program, bytes):
        raise AssertionError(f"expected bytes, got {type(artifact.exported_program).__name__}")
    allowed = allowed_names(allow_operators)
    parts = (artifact.state_dict, artifact.constants, artifact.example_inputs)
    budget = Budget(limits, sizes_of(artifact.exported_program, *parts))
    with _native.GcPause():  # all objects created here are live at the end
        with phase("text"):
            document = SCHEMA.read(artifact.exported_program, "ExportedProgram", budget.native)
        check_version(document.field(CLASSES, "schema_version"), _unsafe_skip_version_check)
        return decode(
            document,
            artifact.state_dict,
            artifact.constants,
            artifact.example_inputs,
            allow_pickle=allow_pickle,
            allowed=allowed,
            budget=budget,
        )

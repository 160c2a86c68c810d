"""Write an exported program as bytes."""

from __future__ import annotations

import json
import re
from typing import Any

import torch
from torch.export import ExportedProgram

from fxpress import _native
from fxpress._base.arguments import check_opset_version, check_pickle_protocol, check_program
from fxpress._base.errors import UnsupportedError
from fxpress._base.observing.progress import Progress, check_progress, reporting
from fxpress._files.serde.artifacts import check_program_values, save_artifact
from fxpress._files.serde.body_constants import lift_body_constants
from fxpress._files.serde.checks import to_check
from fxpress._files.serde.damage import validate
from fxpress._files.serde.facts import serialize_range_constraints
from fxpress._files.serde.schema import SCHEMA
from fxpress._files.serde.treespecs import TreeSpecWriter
from fxpress._torch import serde as compat
from fxpress._torch.watching import operation, phase

_STACK_MARKS = re.compile(r"[][(),;]")  # brackets and separators in the text of `nn_module_stack`
_PARTS = ("state", "constants", "example inputs")


def graph_metadata(meta: dict[str, Any]) -> dict[str, str]:
    """Return the metadata of a graph module as stored in a file."""
    custom = meta.get("custom")
    if not custom:
        return {}
    try:
        return {"custom": json.dumps(custom)}
    except Exception as e:
        raise compat.SerializeError(
            f"Failed to serialize custom metadata for graph with error {e}"
        ) from e


def facts_of(
    program: ExportedProgram, treespecs: TreeSpecWriter, opset_version: dict[str, int] | None
) -> dict[str, Any]:
    """Return the fields of the document, except graph, signature and module calls, as a dict."""
    return {
        "opset_version": compat.with_aten(opset_version),
        "range_constraints": {
            name: (limits.min_val, limits.max_val)
            for name, limits in serialize_range_constraints(program.range_constraints).items()
        },
        "schema_version": compat.schema.SCHEMA_VERSION,
        "verifiers": [verifier.dialect for verifier in program.verifiers],
        "torch_version": torch.__version__,
        "guards_code": compat.guards_code(program),
        "metadata": graph_metadata(program.graph_module.meta),
        "namedtuple_fields": treespecs.fields,
    }


def _check_names(program: ExportedProgram) -> None:
    """Raise UnsupportedError for names in a program that a reader of the file would refuse."""
    specs = program.graph_signature.input_specs
    names = [spec.target for spec in specs if isinstance(spec.target, str)]
    paths = [entry.fqn for entry in program.module_call_graph]
    refused = _native.first_refused("StateName", names)
    if refused is None:
        refused = _native.first_refused("ModulePath", paths)
    if refused is None and _STACK_MARKS.search("".join(paths)):
        refused = next((path for path in paths if not _can_be_in_stack(path)), None)
    if refused is not None:
        raise UnsupportedError(
            f"{refused!r}: a file cannot contain this name of a module or of state; "
            "rename it and export the model again"
        )


def _can_be_in_stack(path: str) -> bool:
    """Return whether a path has balanced brackets, and no separator that ends it too early."""
    depth = 0
    for mark in _STACK_MARKS.findall(path):
        depth += (mark in "[(") - (mark in "])")
        if depth < 0 or mark == ";" or (mark == "," and depth == 0):
            return False
    return depth == 0


def encode(
    program: ExportedProgram, opset_version: dict[str, int] | None = None
) -> tuple[bytes, dict[str, Any]]:
    """Return a program's JSON, and a dict: name -> custom object in its graph."""
    return _native.on_unchanged(program.graph, lambda: _encode(program, opset_version))


def _encode(
    program: ExportedProgram, opset_version: dict[str, int] | None
) -> tuple[bytes, dict[str, Any]]:
    _check_names(program)
    checked = to_check(
        program.graph_module, program.verifiers, program.state_dict, program.constants
    )
    if checked is None:
        validate(program)
    treespecs = TreeSpecWriter()
    objects: dict[str, Any] = {}
    facts = facts_of(program, treespecs, opset_version)
    parts = (program.graph_module, program.graph_signature, program.module_call_graph)
    text = SCHEMA.encode_program(*parts, facts, objects, treespecs, checked)
    if text is None:  # the native check did not accept the program, so torch's verifier decides
        validate(program)
        objects.clear()
        treespecs.fields.clear()
        text = SCHEMA.encode_program(*parts, facts, objects, treespecs, None)
        assert text is not None
    return text, objects


def _tensor_bytes(parts: list[dict[str, Any] | None]) -> int:
    """Return an estimate of the bytes of tensors in dicts; a shared storage counts once."""
    sizes: dict[int, int] = {}
    for part in parts:
        for value in ({} if part is None else part).values():
            plain = type(value) in (torch.Tensor, torch.nn.Parameter) and not value.is_meta
            if plain and value.layout is torch.strided:
                storage = value.untyped_storage()
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


def serialize_parts(
    program: ExportedProgram,
    opset_version: dict[str, int] | None,
    pickle_protocol: int,
    wanted: tuple[bool, bool, bool],
    progress: Progress = False,
) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the bytes of the program, its state, its constants and its example inputs.

    `wanted` selects which of state, constants and inputs to write; the others are empty bytes.
    """
    check_program(program, "exported_program")
    check_opset_version(opset_version)
    check_pickle_protocol(pickle_protocol)
    check_progress(progress)
    program = lift_body_constants(program)
    if wanted[1]:
        check_program_values(program, with_state=False)
    with compat.module_inputs(program.example_inputs):
        with phase("graph"):
            text, objects = encode(program, opset_version)
        for name, constant in program.constants.items():
            if name in objects:
                raise AssertionError(f"constant name {name!r} already exists in constants")
            objects[name] = constant
        state = compat.remove_proxy_from_state_dict(program.state_dict, in_place=False)
        values = (state, objects, program.example_inputs)
        parts = [value if yes else None for value, yes in zip(values, wanted, strict=True)]
        saved = []
        total = 0 if progress is False else _tensor_bytes(parts[:2])
        with reporting(progress, "serializing", total) as report:
            for name, part in zip(_PARTS, parts, strict=True):
                with phase(name):
                    saved.append(save_artifact(part, pickle_protocol, report=report))
    return text, saved[0], saved[1], saved[2]


def _sizes(
    made: compat.SerializedArtifact, exported_program: ExportedProgram, *_: Any, **__: Any
) -> dict[str, int]:
    parts = (made.exported_program, made.state_dict, made.constants, made.example_inputs)
    return {"nodes": len(exported_program.graph.nodes), "bytes": sum(map(len, parts))}


@operation("serialize", _sizes)
def serialize(
    exported_program: ExportedProgram,
    opset_version: dict[str, int] | None = None,
    pickle_protocol: int = 2,
    *,
    serialize_state_dict: bool = True,
    serialize_constants: bool = True,
    serialize_example_inputs: bool = True,
    progress: Progress = False,
) -> compat.SerializedArtifact:
    """Return an exported program as bytes. They are identical to torch's, except for ids of graphs.

    These ids are in the "from_node" metadata of nodes. torch writes the addresses of graphs.
    fxpress numbers the graphs from 0, so that equal exports give equal bytes in every process.

    Args:
        exported_program: the program, which is not modified.
        opset_version: operator set -> version; "aten" is added if it is missing.
        pickle_protocol: the pickle protocol for state, constants and example inputs.
        serialize_state_dict, serialize_constants, serialize_example_inputs: whether to write these
            parts; a part that is left out is empty.
        progress: how to show the progress of writing tensors, in bytes: True or a function of
            (done, total, what).

    Raises:
        fxpress.SerializeError: a node cannot be written; the message names it. If the program is
            invalid, the error is also torch's SpecViolationError. If an object cannot be pickled,
            it is also a PicklingError, an AttributeError and a TypeError.
        fxpress.UnsupportedError: fxpress cannot write a part of the program.
        AssertionError: a constant and an object of the graph have the same name.
        TypeError: an argument is of a wrong type.
        ValueError: there is no such `pickle_protocol`.
        ImportError: `progress` needs a package that is not installed.

    Other exceptions that the caller's classes raise during pickling are not converted.

    Stands in for `torch._export.serde.serialize.serialize`.

    Example:
        >>> from fxpress.serialize import serialize
        >>> serialize(program).exported_program[:1]
        b'{'
    """
    wanted = (serialize_state_dict, serialize_constants, serialize_example_inputs)
    parts = serialize_parts(exported_program, opset_version, pickle_protocol, wanted, progress)
    return compat.SerializedArtifact(*parts)

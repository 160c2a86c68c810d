"""An exported program to bytes."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from fxpress import _torch_compat_serde as compat
from fxpress._serde.artifacts import save_artifact
from fxpress._serde.schema import SCHEMA
from fxpress._serde.treespecs import TreeSpecWriter

log = logging.getLogger("fxpress")


def _bound(value: Any, adjust: Any) -> int | None:
    """A limit of a range as it is written; None when there is none."""
    if value in (sympy.oo, compat.int_oo, -sympy.oo, -compat.int_oo):
        return None
    if isinstance(value, sympy.Integer):
        return int(value)
    log.warning(
        "Export constraints cannot be non-integer expressions. Found type %s, and value %s. "
        "It is rounded.",
        type(value),
        value,
    )
    return int(adjust(value))


def _graph_metadata(meta: dict[str, Any]) -> dict[str, str]:
    custom = meta.get("custom")
    if not custom:
        return {}
    try:
        return {"custom": json.dumps(custom)}
    except Exception as e:
        raise compat.SerializeError(
            f"Failed to serialize custom metadata for graph with error {e}"
        ) from e


def _checked(program: ExportedProgram) -> tuple[list[Any], Any, Any, bool] | None:
    """What the native check of a program needs; None when the verifier is not one of torch's."""
    verifiers = program.verifiers
    if len(verifiers) != 1 or verifiers[0] not in compat.VERIFIERS:
        return None
    modules = [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    functional = verifiers[0] is not compat.TrainingIRVerifier
    return modules, program.state_dict, program.constants, functional


def encode(
    program: ExportedProgram, opset_version: dict[str, int] | None = None
) -> tuple[bytes, dict[str, Any]]:
    """The JSON bytes of a program, and the custom objects that its graph has as literals."""
    checked = _checked(program)
    if checked is None:
        program.validate()
    treespecs = TreeSpecWriter()
    objects: dict[str, Any] = {}
    facts = {
        "opset_version": {**(opset_version or {})},
        "range_constraints": {
            str(symbol): (_bound(limits.lower, math.ceil), _bound(limits.upper, math.floor))
            for symbol, limits in program.range_constraints.items()
        },
        "schema_version": compat.schema.SCHEMA_VERSION,
        "verifiers": [verifier.dialect for verifier in program.verifiers],
        "torch_version": torch.__version__,
        "guards_code": compat.guards_code(program),
        "metadata": _graph_metadata(program.graph_module.meta),
        "namedtuple_fields": treespecs.fields,
    }
    facts["opset_version"].setdefault("aten", compat.opset_version())
    parts = (program.graph_module, program.graph_signature, program.module_call_graph)
    text = SCHEMA.encode_program(*parts, facts, objects, treespecs, checked)
    if text is None:  # something may be wrong: torch's verifier says what, or that it is not
        program.validate()
        objects.clear()
        treespecs.fields.clear()
        text = SCHEMA.encode_program(*parts, facts, objects, treespecs, None)
        assert text is not None
    return text, objects


def serialize(
    exported_program: ExportedProgram,
    opset_version: dict[str, int] | None = None,
    pickle_protocol: int = 2,
    *,
    serialize_state_dict: bool = True,
    serialize_constants: bool = True,
    serialize_example_inputs: bool = True,
) -> compat.SerializedArtifact:
    """An exported program as bytes: the same that torch writes.

    Ids of graphs in the nodes' "from_node" metadata count from 0 instead of being addresses, so
    that equal exports give equal bytes in every process.

    Args:
        exported_program: what is written; it stays as it is.
        opset_version: operator set -> version; "aten" is added when it is missing.
        pickle_protocol: for state, constants and example inputs.
        serialize_state_dict, serialize_constants, serialize_example_inputs: what is left out is
            written as no bytes.

    Raises:
        SerializeError: a node cannot be written; the message names it.
        fxpress.UnsupportedError: the program has something that fxpress cannot write.

    Stands in for `torch._export.serde.serialize.serialize`.
    """
    with compat.module_inputs(exported_program.example_inputs):
        text, objects = encode(exported_program, opset_version)
        for name, constant in exported_program.constants.items():
            if name in objects:
                raise AssertionError(f"constant name {name!r} already exists in constants")
            objects[name] = constant
        state = compat.remove_proxy_from_state_dict(exported_program.state_dict, in_place=False)
        parts = (
            (serialize_state_dict, state),
            (serialize_constants, objects),
            (serialize_example_inputs, exported_program.example_inputs),
        )
        saved = [
            save_artifact(value, pickle_protocol) if wanted else b"" for wanted, value in parts
        ]
    return compat.SerializedArtifact(text, *saved)

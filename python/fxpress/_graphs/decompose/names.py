"""The names of the new program's nodes."""

from __future__ import annotations

import re
from typing import Any

from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from fxpress import _native
from fxpress._graphs.decompose.inputs import Input
from fxpress._graphs.decompose.values import UnsafeError
from fxpress._torch import decompose as compat
from fxpress._torch.decompose import pytree

_NO_NAME = re.compile(r"[^a-zA-Z0-9]")


def _text(key: Any) -> str:
    """Return what a step into the user's inputs adds to a name."""
    if isinstance(key, pytree.MappingKey):
        return _NO_NAME.sub("_", str(key.key))
    if isinstance(key, pytree.SequenceKey):
        return str(key.idx)
    if isinstance(key, pytree.GetAttrKey):
        return str(key.name)
    raise UnsafeError("inputs within a container of an unknown kind")


def argument_names(program: ExportedProgram) -> list[str]:
    """Return the names that the user's inputs want to have, in order."""
    calls = program.module_call_graph
    signature = calls[0].signature if calls and calls[0].fqn == "" else None
    if signature is None or signature.in_spec.type is not tuple:
        raise UnsafeError("a program without the structure of its inputs")
    spec = signature.in_spec
    args, kwargs = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    values = (*args, *kwargs.values())
    names = signature.forward_arg_names or [
        *(f"arg_{i}" for i in range(len(args))),
        *kwargs,
    ]
    if len(names) != len(values) or not all(map(str.isidentifier, names)) or "self" in names:
        raise UnsafeError("inputs whose names are not known")
    flat, _ = pytree.tree_flatten_with_path(dict(zip(names, values, strict=True)))
    return ["_".join([_text(key).lower() for key in path]) for path, _ in flat]


def input_names(program: ExportedProgram, inputs: list[Input]) -> list[str]:
    """Return the names of the placeholders."""
    renamer = _native.Renamer()
    given = [i for i, entry in enumerate(inputs) if entry.spec.kind is InputKind.USER_INPUT]
    wanted = argument_names(program)
    if len(wanted) != len(given):
        raise UnsafeError("inputs that do not fit their structure")
    names = [""] * len(inputs)
    annotated: set[str] = set()  # torch gives inputs the annotations of nodes with these names
    for place, name in zip(given, wanted, strict=True):
        if not name or not name.isascii():  # torch reads numbers in other digits too
            raise UnsafeError("an input without a name, or with one beyond ASCII")
        names[place] = renamer.placeholder(name)
    for place, entry in enumerate(inputs):
        if entry.spec.kind is not InputKind.USER_INPUT:
            base = _stripped(entry.spec.target or "").lower()
            names[place] = renamer.placeholder(compat.PREFIXES[entry.spec.kind] + base)
            annotated.add(base)
    annotated.update(names)
    if any("custom" in node.meta and node.name in annotated for node in program.graph.nodes):
        raise UnsafeError("annotations of a node with the name of an input")
    return names


def _stripped(target: str) -> str:
    for prefix in ("L__self___", "self_"):
        if target.startswith(prefix):
            target = target[len(prefix) :]
            break
    return _NO_NAME.sub("_", target)

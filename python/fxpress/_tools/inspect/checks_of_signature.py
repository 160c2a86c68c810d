"""Compare the signature of a program with its graph, as torch's verifier does."""

from __future__ import annotations

from typing import Any

from fxpress._files.format.fields import a_list, an_object, one_of
from fxpress._files.format.stored import STATE
from fxpress._tools.inspect.findings import Found

_VERIFIERS = ("ATEN", "TRAINING")


def check_signature(graph: dict[str, Any], signature: dict[str, Any]) -> Found:
    """Yield where a signature tells of other inputs and results than the graph has.

    Raises:
        KeyError, TypeError, ValueError: a field is damaged.
    """
    inputs, outputs = (a_list(graph[each]) for each in ("inputs", "outputs"))
    ins, outs = (list(map(one_of, a_list(signature[f"{n}_specs"]))) for n in ("input", "output"))
    for what, values, specs in (("input", inputs, ins), ("output", outputs, outs)):
        if len(values) != len(specs):
            yield f"{len(values)} {what}s, but {len(specs)} in the signature", False
            return
        for number, (value, (kind, held)) in enumerate(zip(values, specs, strict=True)):
            said = _name_of(held.get("arg", held), kind)
            name = _name_of(value, "")
            if None not in (said, name) and said != name:
                text = f"graph.{what}s[{number}] is {name!r}, but {said!r} in the signature"
                yield text, False
    named: dict[str, set[Any]] = {"user_input": set()}
    for kind, held in ins:
        if kind == "user_input":
            named[kind].add(_name_of(held["arg"], kind))
        elif kind in STATE:
            named.setdefault(kind, set()).add(held[STATE[kind].field])
    for kind, held in outs:
        of = kind.removesuffix("_mutation")
        targets = [value for key, value in an_object(held).items() if key != "arg"]
        if of != kind and not named.get(of, set()).issuperset(targets):
            yield f"{targets[0]!r} is written, but it is no {of.replace('_', ' ')}", False


def check_verifiers(verifiers: list[str]) -> Found:
    """Yield the verifiers that torch itself has not."""
    for name in verifiers:
        if name not in _VERIFIERS:
            yield f"it is checked by {name!r}, which a library has to bring", True


def _name_of(argument: Any, kind: str) -> str | None:
    """Return the name of a value; None for constants."""
    if type(argument) is not dict or kind == "constant_input":
        return argument.get("name") if type(argument) is dict else None
    if type(argument.get("name")) is str:
        return str(argument["name"])
    _, held = one_of(argument)
    if type(held) is dict:
        name = held.get("name", held.get("as_name"))
        return name if type(name) is str else None
    return None

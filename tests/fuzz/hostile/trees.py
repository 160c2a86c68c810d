"""Tree specs that are not trees, deep ones, and unexpected classes."""

from __future__ import annotations

import functools
import json
from typing import Any

from tests.fuzz.hostile.cases import add, edited, hostile
from tests.support.payloads import DOUBLE
from tests.support.sentinel import MODULE

LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}


def node(kind: str | None, context: Any, *children: Any) -> dict[str, Any]:
    """A node of a tree spec."""
    return {"type": kind, "context": context, "children_spec": list(children)}


def _with_spec(text: str, field: str = "in_spec") -> bytes:
    def edit(stored: Any) -> None:
        stored["graph_module"]["module_call_graph"][0]["signature"][field] = text

    return edited("layers", edit)


def _inputs(*args: Any, **kwargs: Any) -> str:
    """The spec of a call with arguments."""
    names = json.dumps(list(kwargs))
    call = (node("builtins.tuple", "null", *args), node("builtins.dict", names, *kwargs.values()))
    return json.dumps([1, node("builtins.tuple", "null", *call)])


def _deep(kind: str, context: str, depth: int) -> str:
    opened = json.dumps(node(kind, context)).removesuffix("]}")
    leaf = json.dumps(LEAF)
    return f"[1, {opened * depth}{leaf}{']}' * depth}]"


_ENUM = '[{"__enum__": true, "fqn": "%s", "name": "%s"}]'
_FACTORY = {"default_factory_module": "builtins", "default_factory_name": "list"}
_TEXTS: dict[str, str] = {
    "lists-1000-deep": _deep("builtins.list", "null", 1000),
    "lists-100000-deep": _deep("builtins.list", "null", 100_000),
    "keys-that-are-code": _inputs(node("builtins.dict", json.dumps([f"'+{DOUBLE}+'"]), LEAF)),
    "keys-that-are-lists": _inputs(node("builtins.dict", "[[1]]", LEAF)),
    "keys-that-are-objects": _inputs(node("builtins.dict", '[{"a": 1}]', LEAF)),
    "keys-that-are-nan": _inputs(node("builtins.dict", "[NaN]", LEAF)),
    "keys-that-are-large": _inputs(node("builtins.dict", f"[{'9' * 4000}]", LEAF)),
    "keys-twice": _inputs(node("builtins.dict", '["a", "a"]', LEAF, LEAF)),
    "fewer-keys-than-children": _inputs(node("builtins.dict", "[]", LEAF)),
    "keys-of-keyword-arguments": _inputs(LEAF, **{f"x': 1}}), {DOUBLE}, ({{'y": LEAF}),
    "positions-as-keys": _inputs(node("builtins.dict", "[0, 1.5, true, null]", *[LEAF] * 4)),
    "enum-of-a-module": _inputs(node("builtins.dict", _ENUM % (f"{MODULE}:Hit", "x"), LEAF)),
    "enum-of-a-dictionary": _inputs(node("builtins.dict", _ENUM % ("os:environ", "PATH"), LEAF)),
    "enum-of-another-class": _inputs(node("builtins.dict", _ENUM % ("os:PathLike", "x"), LEAF)),
    "enum-with-attributes": _inputs(
        node("builtins.dict", _ENUM % ("enum:Enum.__class__.__base__", "x"), LEAF)
    ),
    "enum-of-attributes": _inputs(
        node("builtins.dict", _ENUM % ("inspect:_ParameterKind", "__class__"), LEAF)
    ),
    "factory-that-is-code": _inputs(
        node(
            "collections.defaultdict",
            {**_FACTORY, "default_factory_name": "eval", "dict_context": []},
        )
    ),
    "factory-that-is-a-class": _inputs(
        node(
            "collections.defaultdict",
            {
                "default_factory_module": "subprocess",
                "default_factory_name": "Popen",
                "dict_context": [],
            },
        )
    ),
    "factory-of-a-function": _inputs(
        node(
            "collections.defaultdict",
            {"default_factory_module": "os", "default_factory_name": "system", "dict_context": []},
        )
    ),
    "factory-of-a-module": _inputs(
        node(
            "collections.defaultdict",
            {
                "default_factory_module": MODULE,
                "default_factory_name": "Hit",
                "dict_context": [],
            },
        )
    ),
    "class": _inputs(node("subprocess.Popen", "null", LEAF)),
    "class-of-a-module": _inputs(node(f"{MODULE}.Hit", "null", LEAF)),
    "partial": _inputs(node("functools.partial", '["os.system"]', LEAF)),
    "ordered-dictionary-of-lists": _inputs(node("collections.OrderedDict", "[[1]]", LEAF)),
    "deque": _inputs(node("collections.deque", '"x"', LEAF)),
    "size": _inputs(node("torch.Size", "null", LEAF)),
    "slice": _inputs(node("builtins.slice", "null", LEAF, LEAF, LEAF)),
    "named-tuple-of-code": _inputs(node("collections.namedtuple", f'"{MODULE}"', LEAF)),
    "context-that-is-deep": _inputs(node("builtins.dict", "[" * 100_000, LEAF)),
    "context-that-is-deep-and-ends": _inputs(node("builtins.dict", "[" * 900 + "]" * 900, LEAF)),
    "context-that-is-no-json": _inputs(node("builtins.dict", "not json", LEAF)),
    "context-that-is-long": _inputs(node("builtins.dict", json.dumps(list(range(100_000))))),
    "no-arguments": json.dumps([1, LEAF]),
    "wrong-call": json.dumps([1, node("builtins.tuple", "null", LEAF)]),
    "leaf-with-children": json.dumps([1, node(None, None, LEAF)]),
    "many-leaves": _inputs(*[LEAF] * 30_000),
    "many-empty": _inputs(*[node("builtins.tuple", "null")] * 30_000, LEAF),
    "deep": "[" * 100_000,
    "empty": "",
    "no-tree": "[1]",
    "list-as-a-tree": "[1, []]",
    "protocol": json.dumps([2, LEAF]),
    "number": "1",
    "nothing": "null",
    "nan": "NaN",
    "large-number": "9" * 100_000,
}
# The text of the error; "" for any text.
_REFUSED = dict.fromkeys(
    [
        *("lists-100000-deep", "enum-with-attributes", "enum-of-attributes"),
        *("factory-that-is-code", "factory-that-is-a-class", "class", "named-tuple-of-code"),
        *("context-that-is-deep", "keys-of-keyword-arguments"),
        *("number", "nothing", "nan", "large-number"),
    ],
    "",
) | {
    "enum-of-a-module": f"names {MODULE}:Hit, which is not a class of an imported module",
    "enum-of-a-dictionary": "names os:environ, which is not a class of an imported module",
    "enum-of-another-class": "names os:PathLike, which is not an Enum",
    "factory-of-a-function": "names os:system, which is not a class of an imported module",
    "factory-of-a-module": f"names {MODULE}:Hit, which is not a class of an imported module",
    "class-of-a-module": f"{MODULE}.Hit in pytree is not registered",
    "context-that-is-no-json": "a tree spec is damaged: JSONDecodeError",
    "deep": "limit 'depth'",
    "empty": "is not a tree spec",
    "no-tree": "a tree spec is damaged: ValueError",
    "list-as-a-tree": "expected a type, a context and children in a tree spec",
    "protocol": "of a tree spec, found 2",
}
for _name, _text in _TEXTS.items():
    _wanted = "refused" if _name in _REFUSED else "either"
    for _field in ("in_spec", "out_spec"):
        if _field == "out_spec" and "keyword" in _name:
            continue
        _make = functools.partial(_with_spec, _text, _field)
        add(
            f"trees-{_field.replace('_spec', '')}-{_name}",
            _make,
            _wanted,
            "layers",
            message=_REFUSED.get(_name, ""),
        )


@hostile("either", "containers")
def names_of_fields_that_are_code() -> bytes:
    def edit(stored: Any) -> None:
        fields = stored["graph_module"]["treespec_namedtuple_fields"]
        for each in fields.values():
            each["field_names"] = [f"x={DOUBLE}", "__class__"]

    return edited("containers", edit)


@hostile("either", "layers")
def specs_of_modules_that_are_code() -> bytes:
    def edit(stored: Any) -> None:
        for call in stored["graph_module"]["module_call_graph"][1:]:
            if call["signature"]:
                text = call["signature"]["in_spec"]
                call["signature"]["in_spec"] = text.replace("factor", f"factor'+{MODULE}+'")

    return edited("layers", edit)


@hostile("either", "layers")
def signatures_without_arguments() -> bytes:
    def edit(stored: Any) -> None:
        for call in stored["graph_module"]["module_call_graph"][1:]:
            if call["signature"]:
                call["signature"].update(inputs=[], outputs=[])

    return edited("layers", edit)


@hostile("either", "layers")
def modules_that_are_twice_there() -> bytes:
    def edit(stored: Any) -> None:
        calls = stored["graph_module"]["module_call_graph"]
        calls.extend(calls[:])

    return edited("layers", edit)

"""The texts that each rule accepts; every text of torch's schema has a rule."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path
from typing import Any

import pytest
from torch._export.serde import schema

from fxpress import _native
from fxpress._files.serde.schema import SCHEMA

CALL = "__import__('os')"

# rule -> what it takes, what it refuses
RULES: dict[str, tuple[list[str], list[str]]] = {
    "Identifier": (
        ["x", "_1", "class", "ключ", "名前", "x" * 10000],
        ["", "1x", "a.b", "a b", "x=1", "x\n", "x ", "x\u00a0", "\u2028", "a\0", "\ud800"],
    ),
    "OptionalIdentifier": (["", "x"], ["1", "f()"]),
    "ArgumentName": (
        ["x", "args_0", "class", "a-b", "a.b", "a b", "ключ"],
        ["", "x=f()", "x: f()", "*x", "x, y", "x\n", "x#", "'", '"', "(", "x\\", "\t"],
    ),
    "StateName": (
        ["weight", "a.b.0.c", "a-b.c d", "слой.weight", "f(x).y", "_orig_mod.a", "a.__b.c__"],
        [
            *("", ".a", "a.", "a..b", 'a"b', "a'b", "a\\b", "a\nb", "a.__class__.b", "__dict__"),
            *("forward", "training", "a._parameters.b", "_forward_hooks"),
        ],
    ),
    "ModulePath": (
        ["", "layers.0", "layers.0@1", "L['self'].layers[0]", "L['self']._modules['a-b'].c", "a b"],
        ["L['self", "a'b", 'a"b', "a\\", "a\n", "a.__class__.b", "['a'+f()+'b']", "'a'"],
    ),
    "TypeName": (
        ["", "torch.nn.modules.linear.Linear", "a.f.<locals>.B", "__torch__.a.B", "B[int, str]"],
        ["a'b", 'a"b', "a\nb", "a\\b"],
    ),
    "Operator": (
        ["torch.ops.aten.add.Tensor", "_operator.add", "math.ceil", "torch.sym_max", "#my:op", ""],
        ["torch.ops.aten.add(x)", "f'x'", "a\nb", '#my:"op"', "a;b", "a=b"],
    ),
    "Key": (["", "a b", "x.y", "1", "ключ", "{}", "f()", "#", "a=b"], ["a'b", 'a"b', "a\\b", "\n"]),
    "ConstantInput": (["", "mean", "a (b)"], ["it's", '"', "a\\b", "a\nb", "\x00"]),
    "Literal": (["", "anything ' \" \\ \n"], []),
    "Symbol": (["s0", "u12", "batch", "_x"], ["", "s0 + f()", "f()", "s.0", "s'"]),
    "Expression": (
        ["s0", "2*s0 + 1", "Symbol('s0', positive=True)", "-oo", "Float('1.5e-3', precision=53)"],
        ["", "Symbol('f()')", "a[0]", "a; b", "a # b", "a\\", "a: b", "'", "Symbol('a\nb')"],
    ),
    "TreeSpec": (['[1, {"type": null}]'], ["", "{}", "[\n]", " []"]),
    "JsonObject": (['{"a": 1}'], ["", "[]", "{\n}"]),
    "ModuleStack": (
        [
            *("L__self__,,a.B", "a,b.c,d.E;f,b.c.g@1,h.I", "a,b,C[d, e]", "a,b,c.__new__.D"),
            *("a,L['fn'].__closure__[0].cell_contents,B", "a,b.get_submodule('c'),D"),
            "a,getattr(L['self'], '0'),D",
        ],
        ["a,b'c,D", "a,b 'c,D", "a,b 'c'],D", 'a,b"c,D', "a,b,D'", "a'b,c,D", "a\n,b,c"],
    ),
    "StackTrace": (
        ["", 'File "a.py", line 1, in f\n\tx = "é"'],
        ["a\rb", "a\x1b[31m", "a\0", "\b"],
    ),
    "Line": (
        ["", "add_1", "<built-in function getitem>", "OpOverload.to.dtype;x", "it's"],
        ["a\nb", "a\rb", "a'''b", 'a"""b', "a\\", "\x1b"],
    ),
    "Word": (["ATEN", "cpu", "aten", "my.ops:1"], ["", "a b", "a(", "a'", "é"]),
    "Version": (["2.13.0+cpu", "<=2.4"], ["2\n", "2'"]),
    "RecordName": (["weight_0", "a b"], ["", ".", "..", "a/b", "a\\b", "a\n", "\0"]),
}
OF_TWO_TEXTS = {"NodeMetadata", "GraphMetadata"}  # a key and its value: test_gate.py


@pytest.mark.parametrize("rule", RULES)
def test_rule(rule: str) -> None:
    taken, refused = RULES[rule]
    assert [text for text in taken if not _native.passes_gate(rule, text)] == []
    assert [text for text in refused if _native.passes_gate(rule, text)] == []


def test_every_rule_is_tested() -> None:
    assert set(_native.gate_rules()) == {*RULES, *OF_TWO_TEXTS, "Guard"}  # test_gate_guards.py


def test_unknown_rules() -> None:
    with pytest.raises(KeyError, match="NoSuchRule"):
        _native.passes_gate("NoSuchRule", "x")
    with pytest.raises(KeyError, match="None"):
        _native.first_refused("None", ["x"])


def test_the_first_of_many() -> None:
    assert _native.first_refused("Identifier", ["a", "b"]) is None
    assert _native.first_refused("Identifier", {"a": 1, "b c": 2, "d e": 3}) == "b c"
    assert _native.first_refused("Identifier", ["a", 1]) == 1


def test_the_table_of_the_docs() -> None:
    text = Path("docs/design/serde.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE)
    told = {field: rule for rule, fields in rows for field in re.findall(r"`(.+?)`", fields)}
    assert told == {
        f"{of}.{field}": rule for of, field, rule, is_known in SCHEMA.rules() if rule and is_known
    }
    assert {rule for rule, _ in rows} == set(_native.gate_rules())


# Torch's types that no function of fxpress reads.
NOT_READ = {"AOTInductorModelPickleData", "ExternKernelNode", "ExternKernelNodes"}


def _has_text(hint: Any) -> bool:
    """Whether a value of a type is a text, or a list or map of texts, or has them as keys."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    arguments = typing.get_args(hint)
    return hint is str or typing.get_origin(hint) is dict or any(map(_has_text, arguments))


def test_every_text_of_torchs_schema_has_a_rule() -> None:
    rules = {(of, field): (rule, is_known) for of, field, rule, is_known in SCHEMA.rules()}
    seen = 0
    for name, cls in vars(schema).items():
        if not dataclasses.is_dataclass(cls) or cls.__module__ != schema.__name__:
            continue
        hints = typing.get_type_hints(cls, globalns=vars(schema), include_extras=True)
        for field in dataclasses.fields(cls):
            if _has_text(hints[field.name]):
                rule, is_known = rules[name, field.name]
                assert rule is not None, (name, field.name)
                assert is_known or name in NOT_READ, f"schema.def lacks {name}.{field.name}"
                seen += 1
    assert seen > 40

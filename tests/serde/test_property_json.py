"""JSON of the schema: the native reader and writer give torch's results."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._export.serde import schema as torch_schema
from torch._export.serde import serialize as torch_serialize

from fxpress._files.serde import schema
from fxpress.serialize import SerializeError
from tests.support.generated import examples
from tests.support.serialized import rewritten

FIELDS = {
    name: (union, fields) for name, union, fields in map(schema.describe, schema.TYPES.values())
}
# The rest are of fxpress's own.
NAMES = sorted(name for name in FIELDS if hasattr(torch_schema, name))
# Floats that JSON has no number for are written as texts, which torch reads as floats.
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(
    ["Infinity", "-Infinity", "NaN"]
)
TEXTS = st.text(max_size=8) | st.sampled_from(['a"b', "\\", "\x00\x1f\x7f", "é€😀", "\ud800"])
# The texts that the gate accepts in every field, except the fields below.
IDENTIFIERS = st.from_regex(r"[a-zA-Z_][a-zA-Z_0-9]{0,7}", fullmatch=True)
TREE_SPECS = st.sampled_from(['[1, {"type": null}]', "[]"])
INTEGERS = st.integers(-(2**70), 2**70)


def texts_of(field: str, depth: int) -> st.SearchStrategy[str]:
    if field == "as_string" and depth < 4:  # further inside it may be an input of a graph
        return TEXTS
    return TREE_SPECS if field in ("in_spec", "out_spec") else IDENTIFIERS


@st.composite
def values(
    draw: st.DrawFn, shape: str, depth: int = 0, texts: st.SearchStrategy[str] = IDENTIFIERS
) -> Any:
    """A value of a shape, as json.loads returns it, without the texts of its fields."""
    head, _, rest = shape.partition(" ")
    size = 2 if depth < 6 else 0
    if head == "optional":
        return None if depth > 6 or draw(st.booleans()) else draw(values(rest, depth, texts))
    if head == "list":
        return [draw(values(rest, depth + 1, texts)) for _ in range(draw(st.integers(0, size)))]
    if head == "map":
        keys = draw(st.lists(texts, max_size=size, unique=True))
        return {key: draw(values(rest, depth + 1, texts)) for key in keys}
    simple = {"bool": st.booleans(), "int": INTEGERS, "float": FLOATS, "str": texts}
    if head in simple:
        return draw(simple[head])
    union, fields = FIELDS[head]
    if union:
        # Below some depth only what ends.
        ends = [f for f in fields if f[1] in simple]
        fields = [draw(st.sampled_from(ends if depth > 4 and ends else fields))]
    return {
        name: draw(values(inner, depth + 1, texts_of(name, depth))) for name, inner, _ in fields
    }


def torchs(text: bytes, name: str) -> bytes:
    """Read and written by torch."""
    cls = getattr(torch_schema, name)
    read = torch_serialize._bytes_to_dataclass(cls, text)
    return torch_serialize._to_json_bytes(read)


@pytest.mark.parametrize(
    "name", ["Argument", "NamedArgument", "TensorMeta", "GraphSignature", "ModuleCallEntry", "Node"]
)
@given(data=st.data())
@examples(40)
def test_read_and_written_as_torch_does(name: str, data: st.DataObject) -> None:
    value = data.draw(values(name))
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode("utf-8", "replace")
    assert rewritten(text, name) == torchs(text, name)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@examples(100)
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    try:
        rewritten(text, "Argument")
    except SerializeError:
        return
    json.loads(text)


@given(st.data())
@examples(50)
def test_damaged_text_is_read_or_refused(data: st.DataObject) -> None:
    text = bytearray(json.dumps(data.draw(values("Node"))).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not text:
            return
    with contextlib.suppress(SerializeError):
        rewritten(bytes(text), "Node")

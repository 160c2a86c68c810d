"""Lies in numbers: sizes, strides, offsets, hints, counts, and JSON that is deep or long."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable
from typing import Any

from tests.fuzz.hostile.cases import (
    CONSTANTS,
    MODEL,
    WEIGHTS,
    add,
    documents_of,
    edited,
    hostile,
    written,
)


def _meta(stored: Any) -> Any:
    return next(iter(stored["config"].values()))["tensor_meta"]


def _ints(*values: int) -> list[dict[str, int]]:
    return [{"as_int": value} for value in values]


_TENSORS: dict[str, dict[str, Any]] = {
    "negative-size": {"sizes": _ints(-3)},
    "huge-size": {"sizes": _ints(2**62)},
    "overflowing-sizes": {"sizes": _ints(2**32, 2**32), "strides": _ints(2**32, 1)},
    "more-sizes-than-strides": {"sizes": _ints(3, 3)},
    "many-dimensions": {"sizes": _ints(*[1] * 20000), "strides": _ints(*[1] * 20000)},
    "negative-stride": {"strides": _ints(-1)},
    "huge-stride": {"strides": _ints(2**62)},
    "negative-offset": {"storage_offset": {"as_int": -1}},
    "huge-offset": {"storage_offset": {"as_int": 2**62}},
    "number-beyond-64-bits": {"storage_offset": {"as_int": 2**64}},
    "fraction": {"storage_offset": {"as_int": 0.5}},
    "expression-as-a-size": {"sizes": [{"as_expr": {"expr_str": "s0", "hint": None}}]},
    "dtype": {"dtype": 99},
    "negative-dtype": {"dtype": -1},
    "layout": {"layout": 99},
    "device": {"device": {"type": "nowhere", "index": None}},
    "index-of-device": {"device": {"type": "cpu", "index": 2**40}},
    "device-of-no-memory": {"device": {"type": "meta", "index": None}},
    "gradient-of-integers": {"dtype": 5, "requires_grad": True},
}
_LOAD = {"device-of-no-memory", "layout", "index-of-device", "many-dimensions"}
_MESSAGES = {
    "expression-as-a-size": "model_weights_config",
    "device": "'block.first.weight' in record .*nowhere",
}
for _name, _changes in _TENSORS.items():
    _make = functools.partial(
        edited, "layers", lambda stored, c=_changes: _meta(stored).update(c), WEIGHTS
    )
    if _name in _LOAD:
        add(f"numbers-weight-{_name}", _make, "either", "layers")
    else:
        _message = _MESSAGES.get(_name, "weight")
        add(f"numbers-weight-{_name}", _make, "refused", "layers", message=_message)

# The first weight is three floats in the record weight_0.
_ENTRIES: dict[str, Callable[[Any], Any]] = {
    "more-elements": lambda entry: entry["tensor_meta"].update(sizes=_ints(4)),
    "more-dimensions": lambda entry: entry["tensor_meta"].update(
        sizes=_ints(2**62, 2**62), strides=_ints(3, 1)
    ),
    "fewer-dimensions": lambda entry: entry["tensor_meta"].update(sizes=[]),
    "later-elements": lambda entry: entry["tensor_meta"].update(storage_offset={"as_int": 1}),
    "largest-offset": lambda entry: entry["tensor_meta"].update(
        storage_offset={"as_int": 2**63 - 1}
    ),
    "larger-elements": lambda entry: entry["tensor_meta"].update(dtype=8),
    "smaller-elements": lambda entry: entry["tensor_meta"].update(dtype=1, sizes=_ints(100)),
    "device-that-is-no-word": lambda entry: entry["tensor_meta"].update(
        device={"type": "no device", "index": None}
    ),
    "missing-record": lambda entry: entry.update(path_name="weight_9"),
    "record-by-another-folder": lambda entry: entry.update(path_name="../weights/weight_0"),
    "absolute-record": lambda entry: entry.update(path_name="/etc/passwd"),
    "no-metadata": lambda entry: entry.update(tensor_meta=None),
    "no-record": lambda entry: entry.pop("path_name"),
}
for _name, _edit in _ENTRIES.items():
    _make = functools.partial(
        edited, "layers", lambda stored, e=_edit: e(next(iter(stored["config"].values()))), WEIGHTS
    )
    add(f"numbers-entry-{_name}", _make, "refused", "layers", message="weight")


def _value(changes: dict[str, Any]) -> bytes:
    """A value of the graph, of which a fake tensor is made."""

    def edit(stored: Any) -> None:
        values = stored["graph_module"]["graph"]["tensor_values"]
        for value in values.values():
            value.update(changes)

    return edited("layers", edit)


_TENSORS["many-dimensions"] = {"sizes": _ints(*[1] * 2000), "strides": _ints(*[1] * 2000)}
for _name, _changes in _TENSORS.items():
    add(f"numbers-value-{_name}", functools.partial(_value, _changes), "either", "layers")


def _zeros(size: int, count: int, meta: dict[str, Any] | None = None) -> bytes:
    """Weights of zeros: a record without bytes represents any number of zeros."""
    documents = documents_of("layers")
    config = documents[WEIGHTS]["config"]
    name, first = next((n, c) for n, c in config.items() if "weight" in n)
    first["tensor_meta"].update(sizes=_ints(size), strides=_ints(1), **(meta or {}))
    records: dict[str, Any] = {f"archive/data/weights/{first['path_name']}": b""}
    for i in range(count - 1):
        more = copy.deepcopy(first)
        more["path_name"] = f"weight_{i + 100}"
        config[f"more.{i}"] = more
        records[f"archive/data/weights/weight_{i + 100}"] = b""
    return written("layers", documents | records)


add("numbers-zeros-of-4-gigabytes", functools.partial(_zeros, 1 << 30, 1), "refused", "layers")
add("numbers-zeros-of-exabytes", functools.partial(_zeros, 1 << 60, 1), "refused", "layers")
add("numbers-zeros-many-times", functools.partial(_zeros, 1 << 20, 1000), "refused", "layers")


def _without_bytes(changes: dict[str, Any]) -> bytes:
    """A weight whose record has no bytes, with other numbers."""
    documents = documents_of("layers")
    first = next(iter(documents[WEIGHTS]["config"].values()))
    first["tensor_meta"].update(changes)
    return written("layers", documents | {f"archive/data/weights/{first['path_name']}": b""})


_NEGATIVE = r"weight_0.*negative"
for _name, _changes, _message in (
    ("by-a-stride", {"sizes": _ints(2, 3), "strides": _ints(1 << 32, 1)}, ""),
    ("by-an-offset", {"storage_offset": {"as_int": 1 << 32}}, ""),
    ("of-a-negative-size", {"sizes": _ints(-4)}, _NEGATIVE),
    ("of-a-negative-stride", {"strides": _ints(-3)}, _NEGATIVE),
    ("of-a-negative-offset", {"storage_offset": {"as_int": -1}}, _NEGATIVE),
):
    _make = functools.partial(_without_bytes, _changes)
    add(f"numbers-zeros-{_name}", _make, "refused", "layers", message=_message)


@hostile("refused", "layers")
def constants_of_zeros() -> bytes:
    documents = documents_of("layers")
    first = next(iter(documents[CONSTANTS]["config"].values()))
    first["tensor_meta"].update(sizes=_ints(1 << 33), strides=_ints(1))
    return written("layers", documents | {f"archive/data/constants/{first['path_name']}": b""})


@hostile("refused", "layers")
def weights_in_records_of_the_program() -> bytes:
    def edit(stored: Any) -> None:
        next(iter(stored["config"].values()))["path_name"] = "../../models/model.json"

    return edited("layers", edit, WEIGHTS)


@hostile("either", "layers")
def expanded_weights_beside_safetensors() -> bytes:
    """A size of 2 ** 40 with a stride of 0 needs four bytes, until somebody copies it."""

    def edit(stored: Any) -> None:
        _meta(stored).update(sizes=_ints(1 << 40), strides=_ints(0))

    return edited("layers", edit, WEIGHTS)


@hostile("either", "layers")
def many_configs() -> bytes:
    def edit(stored: Any) -> None:
        first = next(iter(stored["config"].values()))
        stored["config"].update({f"more.{i}": first for i in range(3000)})

    return edited("layers", edit, WEIGHTS)


# ---- JSON


_JSON = {
    "deep-lists": b"[" * 200_000,
    "deep-lists-that-end": b"[" * 200_000 + b"]" * 200_000,
    "deep-objects": b'{"graph_module":' * 50_000,
    "deep-unknown-fields": b'{"x":' * 50_000 + b"1" + b"}" * 50_000,
    "long-number": b'{"schema_version": {"major": ' + b"9" * 100_000 + b"}}",
    "long-fraction": b'{"schema_version": {"major": 0.' + b"1" * 100_000 + b"}}",
    "exponent": b'{"schema_version": {"major": 1e999999999}}',
    "nan": b'{"schema_version": {"major": NaN}}',
    "truncated": b'{"graph_module": {"graph": ',
    "not-utf8": b'{"\xff\xfe": 1}',
    "utf16": '{"graph_module": 1}'.encode("utf-16"),
    "nul": b"\0" * 1000,
    "empty": b"",
    "escape": b'{"\\ud800": "\\u"}',
    "long-text": b'{"torch_version": "' + b"x" * 1_000_000 + b'"}',
    "many-keys": json.dumps({str(i): i for i in range(100_000)}).encode(),
    "same-key": b"{" + b'"torch_version": "x",' * 50_000 + b'"torch_version": ""}',
}
for _name, _content in _JSON.items():
    add(f"numbers-json-{_name}", functools.partial(written, "keys", {MODEL: _content}), "refused")


def _graph(stored: Any) -> Any:
    return stored["graph_module"]["graph"]


def _nested_graphs(depth: int) -> bytes:
    """Graphs of cond within each other."""
    documents = documents_of("branches")
    outer = _graph(documents[MODEL])
    node = next(n for n in outer["nodes"] if n["target"].endswith("cond"))
    branch = next(a for a in node["inputs"] if "as_graph" in a["arg"])
    inner = branch["arg"]["as_graph"]["graph"]
    text = json.dumps(inner)
    mark = '"nodes": ['
    at = text.index(mark) + len(mark)
    nested = json.dumps(
        node | {"inputs": [*node["inputs"][:1], {**branch, "arg": "HERE"}, *node["inputs"][2:]]}
    )
    head, tail = nested.split('"HERE"')
    graph = '{"as_graph": {"name": "true_graph_0", "graph": '
    opened = text[:at] + head + graph
    closed = "}}" + tail + ", " + text[at:]
    whole = opened * depth + text + closed * depth
    branch["arg"]["as_graph"]["graph"] = "HERE"
    model = json.dumps(documents[MODEL]).replace('"HERE"', whole)
    return written("branches", {MODEL: model.encode()})


for _depth in (30, 120):
    _make = functools.partial(_nested_graphs, _depth)
    add(f"numbers-graphs-{_depth}-deep", _make, "either", "branches")


def _nested_argument(depth: int) -> bytes:
    def edit(stored: Any) -> None:
        _graph(stored)["nodes"][0]["inputs"][0]["arg"] = "HERE"

    documents = documents_of("keys")
    edit(documents[MODEL])
    text = json.dumps(documents[MODEL])
    inner = '{"as_string_to_argument": {"x": ' * depth + '{"as_int": 1}' + "}}" * depth
    return written("keys", {MODEL: text.replace('"HERE"', inner).encode()})


for _depth in (60, 10_000):
    _wanted = "loads" if _depth == 60 else "refused"
    add(f"numbers-arguments-{_depth}-deep", functools.partial(_nested_argument, _depth), _wanted)


@hostile("refused")
def origins_that_are_deep() -> bytes:
    """The metadata of a node has a long chain of origins (`from_node`)."""
    origin = '{"name": "x", "target": "x", "graph_id": 1, "pass_name": "", "action": "create", '
    text = "[" + (origin + '"from_node": [') * 20_000 + "]}" * 20_000 + "]"

    def edit(stored: Any) -> None:
        _graph(stored)["nodes"][0]["metadata"]["from_node"] = text

    return edited("keys", edit)


@hostile("either")
def stacks_that_are_long() -> bytes:
    def edit(stored: Any) -> None:
        metadata = _graph(stored)["nodes"][0]["metadata"]
        metadata["nn_module_stack"] = ";".join(f"L__self__x{i},x{i},a.B" for i in range(50_000))

    return edited("keys", edit)


@hostile("either")
def paths_that_are_deep() -> bytes:
    """The path of a module with 20,000 parts."""
    path = ".".join(["a"] * 20_000)

    def edit(stored: Any) -> None:
        metadata = _graph(stored)["nodes"][0]["metadata"]
        metadata["nn_module_stack"] = f"L__self__,,a.B;L__self___x,{path},a.B"

    return edited("keys", edit)


@hostile("either")
def calls_of_many_modules() -> bytes:
    def edit(stored: Any) -> None:
        calls = stored["graph_module"]["module_call_graph"]
        calls.extend(
            {"fqn": "a" + ".a" * (i % 50) + str(i), "signature": None} for i in range(9000)
        )

    return edited("keys", edit)


@hostile("either")
def nodes_with_many_arguments() -> bytes:
    def edit(stored: Any) -> None:
        node = next(n for n in _graph(stored)["nodes"] if "einsum" in n["target"])
        node["inputs"][1]["arg"]["as_tensors"] *= 20_000

    return edited("labels", edit)


@hostile("refused")
def version_of_the_schema() -> bytes:
    return edited("keys", lambda stored: stored["schema_version"].update(major=2**63))


@hostile("either")
def opsets_of_many() -> bytes:
    more = {f"x{i}": i for i in range(20_000)}
    return edited("keys", lambda stored: stored["opset_version"].update(more))


@hostile("either")
def texts_of_a_megabyte() -> bytes:
    def edit(stored: Any) -> None:
        _graph(stored)["nodes"][0]["metadata"]["stack_trace"] = "\n" * 1_000_000

    return edited("keys", edit)

"""Values in a program that a load refuses: symbolic sizes, their ranges, metadata of nodes."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, export

import fxpress
from fxpress import archive
from tests.fuzz.hostile.cases import edited
from tests.support.records import read_records, write_records

SEED = "guarded"  # a frozen program; its sizes are s77 and s17
_S = "Symbol('s77', positive=True, integer=True)"
_Q = "Symbol('q', positive=True, integer=True)"
_OPEN = "Symbol('q', integer=True)"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def with_number(role: str, text: str, hint: Any) -> bytes:
    """Return a program in which a number is an expression.

    Args:
        role: "sizes", "strides" or "storage_offset" of the tensor x, or "int" for the size of y.
        text: the expression.
        hint: the hint as the file has it, or None.
    """
    number = {"as_expr": {"expr_str": text, "hint": hint}}

    def edit(document: Any) -> None:
        graph = document["graph_module"]["graph"]
        if role == "int":
            graph["sym_int_values"]["sym_size_int_3"] = number
        elif role == "storage_offset":
            graph["tensor_values"]["x"][role] = number
        else:
            graph["tensor_values"]["x"][role][0] = number

    return edited(SEED, edit)


def edited_graph(edit: Callable[[Any], None]) -> bytes:
    """Return a program whose graph is edited."""
    return edited(SEED, lambda document: edit(document["graph_module"]["graph"]))


@pytest.mark.parametrize(
    ("role", "text", "hint"),
    [
        ("sizes", "s77 +", None),
        ("sizes", "true", None),
        ("sizes", "Gt(s77, 1)", {"as_int": 9}),
        ("sizes", "(s77, s17)", None),
        ("sizes", "And(s77 > 1, Not(s17 < 2))", None),
        ("sizes", "nan", None),
        ("sizes", "Add(s77, nan)", None),
        ("sizes", "-oo * 0 + zoo", None),
        ("sizes", "I", None),
        ("sizes", "3 - 7", None),
        ("sizes", "9223372036854775807 + 1", None),
        ("sizes", "Float('1.0e300', precision=53)", None),
        ("sizes", "Symbol('q', negative=True)", None),
        ("sizes", "Symbol('q', imaginary=True)", {"as_int": 9}),
        ("sizes", "2 * 4", {"as_int": 9}),
        ("sizes", _S, {"as_float": 9.0}),
        ("sizes", _S, {"as_bool": True}),
        ("sizes", _OPEN, {"as_int": 9}),
        ("sizes", f"{_OPEN} + s77", {"as_int": 9}),
        ("sizes", f"FloorDiv({_Q}, 2)", {"as_int": 9}),
        ("sizes", f"Mod({_Q}, 7)", None),
        ("sizes", "PowByNatural(2, q)", None),
        ("sizes", f"cos({_Q})", None),
        ("strides", "oo", None),
        ("strides", "s77 < 2", None),
        ("strides", "Symbol('s77', even=True, odd=True)", None),
        ("storage_offset", "0 - 1", None),
        ("storage_offset", "s77 <", None),
        ("int", "Max(3, 5)", {"as_int": 4}),
        ("int", "s17 ** s17 ** 65", {"as_int": 4}),
        ("int", "frob(s17)", None),
    ],
)
def test_numbers_that_are_refused(role: str, text: str, hint: Any) -> None:
    with pytest.raises(fxpress.Error):
        archive.load(io.BytesIO(with_number(role, text, hint)))


@pytest.mark.parametrize(
    ("role", "text", "hint"),
    [
        ("sizes", _S, {"as_int": 9}),
        ("sizes", "s77", None),
        ("sizes", "4 + 5", {"as_int": 9}),
        ("sizes", "Symbol('s77')", None),  # the symbol of the same name that came before
        ("sizes", _Q, {"as_int": 9}),  # without a range, but positive
        ("sizes", f"FloorDiv({_Q}, 2) + 1", {"as_int": 9}),
        ("sizes", f"Max({_Q}, Symbol('r'))", {"as_int": 9}),
        ("sizes", "Symbol('q', nonnegative=True, integer=True) + 3", {"as_int": 9}),
        ("strides", _OPEN, {"as_int": 9}),
        ("strides", "1 - 3", None),
        ("storage_offset", _OPEN, None),
        ("storage_offset", "true", {"as_int": 9}),
        ("int", "2 ** 63", None),
    ],
)
def test_numbers_that_are_taken(role: str, text: str, hint: Any) -> None:
    archive.load(io.BytesIO(with_number(role, text, hint)))


def test_what_no_node_computes_is_not_read() -> None:
    def edit(graph: Any) -> None:
        graph["sym_int_values"]["more"] = {"as_expr": {"expr_str": "((", "hint": None}}
        graph["tensor_values"]["more"] = dict(graph["tensor_values"]["x"])
        graph["tensor_values"]["more"]["sizes"] = [{"as_int": 1}] * 9

    data = edited_graph(edit)
    archive.load(io.BytesIO(data))


def test_ranges() -> None:
    ranges = {"min_val": 9, "max_val": 1}
    data = edited(SEED, lambda document: document["range_constraints"].update(s99=ranges))
    with pytest.raises(fxpress.Error):
        archive.load(io.BytesIO(data))


def test_bodies(tmp_path: Path) -> None:
    """Expressions in the body of an operator are refused too."""

    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    path = tmp_path / "file.pt2"
    batch = Dim("batch", min=2, max=64)
    program = export(Branches(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: batch}})
    torch.export.save(program, path)
    fxpress.load(path)
    stored = read_records(path.read_bytes())
    (name,) = [each for each in stored if each.endswith("models/model.json")]
    document = json.loads(stored[name])
    nodes = document["graph_module"]["graph"]["nodes"]
    (inputs,) = [node["inputs"] for node in nodes if "cond" in node["target"]]
    body = next(each["arg"]["as_graph"] for each in inputs if "as_graph" in each["arg"])["graph"]
    for meta in body["tensor_values"].values():
        meta["sizes"][0]["as_expr"]["expr_str"] = "Symbol('evil', zero=True, positive=True)"
    path.write_bytes(write_records(stored | {name: json.dumps(document).encode()}))
    with pytest.raises(fxpress.Error):
        fxpress.load(path)


def nested(depth: int) -> str:
    """The text of sources of a source, and so on."""
    source = '{"name": "n", "target": "t", "graph_id": 1, "pass_name": "p", "action": "CREATE", '
    return f'[{source}"from_node": ' * depth + "[]" + "}]" * depth


def with_metadata(key: str, text: str) -> bytes:
    def edit(graph: Any) -> None:
        graph["nodes"][1]["metadata"][key] = text

    return edited_graph(edit)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("from_node", nested(600)),
        ("from_node", "[" * 600),
        ("from_node", "{"),
        ("from_node", "5"),
        ("from_node", '[{"name": 1}]'),
        ("from_node", '[{"pass_name": "x"}], "from_node": ['),
        ("from_node", nested(3).replace('"p"', r'"p\n    evil()"')),
        ("source_fn_stack", "name"),
        ("source_fn_stack", "a,torch.add;b,c,d"),
        ("source_fn_stack", "a,torch.add;"),
        ("nn_module_stack", "key,path"),
        ("nn_module_stack", "a,b,c;d,e,f,g"),
        ("nn_module_stack", "a,b[0,c"),
        ("custom", '{"a": ' * 600 + "1" + "}" * 600),
    ],
)
def test_metadata_that_are_refused(key: str, text: str) -> None:
    with pytest.raises(fxpress.Error):
        archive.load(io.BytesIO(with_metadata(key, text)))


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("from_node", "null"),
        ("from_node", "[]"),
        ("from_node", nested(1).replace('"n"', r'"n\u2028"')),
        ("from_node", nested(20)),
        ("source_fn_stack", "add,_operator.add;sum,torch.sum"),
        ("source_fn_stack", "evil,os.system"),
        ("nn_module_stack", "key,,module.Class;k,L['self'].a[0, 1],b.C"),
        ("custom", json.dumps({"a": [1, {"b": None}]})),
        ("other", "{[("),
    ],
)
def test_metadata_that_are_taken(key: str, text: str) -> None:
    archive.load(io.BytesIO(with_metadata(key, text)))

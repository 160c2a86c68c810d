"""`fxpress verify` and symbolic sizes: each fault is one of a load, and is named with its place."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim, export

import fxpress
from fxpress import archive
from fxpress._tools.inspect.checks_of_expressions import check_expressions
from fxpress._tools.inspect.uses_of_expressions import Uses
from fxpress._tools.inspect.verification import look_at
from tests.fuzz.hostile.cases import edited
from tests.support.command_line import assert_without_torch, run
from tests.support.expressions import SEED, edited_graph, with_number
from tests.support.found import find_faults
from tests.support.records import read_records, write_records

_S = "Symbol('s77', positive=True, integer=True)"
_Q = "Symbol('q', positive=True, integer=True)"
_OPEN = "Symbol('q', integer=True)"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def faults_of(data: bytes, tmp_path: Path) -> list[str]:
    path = tmp_path / "file.pt2"
    path.write_bytes(data)
    return [fault.text for fault in find_faults(path)]


REFUSED: tuple[tuple[str, str, Any, str], ...] = (
    ("sizes", "s77 +", None, "graph.tensor_values['x'].sizes[0]: an operand is missing"),
    ("sizes", "true", None, "the size cannot be 'true'"),
    ("sizes", "Gt(s77, 1)", {"as_int": 9}, "the size cannot be"),
    ("sizes", "(s77, s17)", None, "the size cannot be"),
    ("sizes", "And(s77 > 1, Not(s17 < 2))", None, "the size cannot be"),
    ("sizes", "nan", None, "the size cannot be 'nan'"),
    ("sizes", "Add(s77, nan)", None, "the size cannot be"),
    ("sizes", "-oo * 0 + zoo", None, ""),
    ("sizes", "I", None, "the size cannot be 'I'"),
    ("sizes", "3 - 7", None, "the size cannot be '3 - 7'"),
    ("sizes", "9223372036854775807 + 1", None, "the size cannot be"),
    ("sizes", "Float('1.0e300', precision=53)", None, "the size cannot be"),
    ("sizes", "Symbol('q', negative=True)", None, "the size cannot be"),
    ("sizes", "Symbol('q', imaginary=True)", {"as_int": 9}, "the size cannot be"),
    ("sizes", "2 * 4", {"as_int": 9}, "it is 8, but its hint is 9"),
    ("sizes", _S, {"as_float": 9.0}, "the hint of an integer is 9.0"),
    ("sizes", _S, {"as_bool": True}, "the hint of an integer is True"),
    ("sizes", _OPEN, {"as_int": 9}, "the symbol 'q' has no range"),
    ("sizes", f"{_OPEN} + s77", {"as_int": 9}, "the symbol 'q' has no range"),
    ("sizes", f"FloorDiv({_Q}, 2)", {"as_int": 9}, "the symbol 'q' has no range"),
    ("sizes", f"Mod({_Q}, 7)", None, "the symbol 'q' has no range"),
    ("sizes", "PowByNatural(2, q)", None, "the symbol 'q' has no range"),
    ("sizes", f"cos({_Q})", None, "the symbol 'q' has no range"),
    ("strides", "oo", None, "the stride cannot be 'oo'"),
    ("strides", "s77 < 2", None, "the stride cannot be"),
    ("strides", "Symbol('s77', even=True, odd=True)", None, "contradict each other"),
    ("storage_offset", "0 - 1", None, "the offset cannot be"),
    ("storage_offset", "s77 <", None, "graph.tensor_values['x'].storage_offset: "),
    ("int", "Max(3, 5)", {"as_int": 4}, "graph.sym_int_values['sym_size_int_3']: it is 5"),
    ("int", "s17 ** s17 ** 65", {"as_int": 4}, "sym_int_values"),
)


@pytest.mark.parametrize(("role", "text", "hint", "said"), REFUSED)
def test_refused(role: str, text: str, hint: Any, said: str, tmp_path: Path) -> None:
    data = with_number(role, text, hint)
    with pytest.raises(fxpress.Error):
        archive.load(io.BytesIO(data))
    if said:
        assert any(said in fault for fault in faults_of(data, tmp_path))


def test_a_function_that_there_is_not(tmp_path: Path) -> None:
    """A note with another torch than the one whose functions are known."""
    data = with_number("int", "frob(s17)", None)
    with pytest.raises(fxpress.Error):
        archive.load(io.BytesIO(data))
    (tmp_path / "file.pt2").write_bytes(data)
    found = [each.text for each in look_at(tmp_path / "file.pt2")]
    assert any("frob is not a function of expressions" in text for text in found)


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
def test_taken(role: str, text: str, hint: Any, tmp_path: Path) -> None:
    data = with_number(role, text, hint)
    archive.load(io.BytesIO(data))
    assert faults_of(data, tmp_path) == []


def test_what_no_node_computes_is_not_read(tmp_path: Path) -> None:
    def edit(graph: Any) -> None:
        graph["sym_int_values"]["more"] = {"as_expr": {"expr_str": "((", "hint": None}}
        graph["tensor_values"]["more"] = dict(graph["tensor_values"]["x"])
        graph["tensor_values"]["more"]["sizes"] = [{"as_int": 1}] * 9

    data = edited_graph(edit)
    archive.load(io.BytesIO(data))
    assert faults_of(data, tmp_path) == []


def test_ranges(tmp_path: Path) -> None:
    ranges = {"min_val": 9, "max_val": 1}
    data = edited(SEED, lambda document: document["range_constraints"].update(s99=ranges))
    with pytest.raises(fxpress.Error):
        archive.load(io.BytesIO(data))
    assert faults_of(data, tmp_path) == ["range_constraints['s99']: no value is from 9 to 1"]


def test_bodies(tmp_path: Path) -> None:
    """Expressions of the graph that an operator is given are looked at too."""

    class Branches(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    path = tmp_path / "file.pt2"
    batch = Dim("batch", min=2, max=64)
    program = export(Branches(), (torch.ones(3, 4),), dynamic_shapes={"x": {0: batch}})
    torch.export.save(program, path)
    assert look_at(path) == []
    stored = read_records(path.read_bytes())
    (name,) = [each for each in stored if each.endswith("models/model.json")]
    document = json.loads(stored[name])
    nodes = document["graph_module"]["graph"]["nodes"]
    (inputs,) = [node["inputs"] for node in nodes if "cond" in node["target"]]
    body = next(each["arg"]["as_graph"] for each in inputs if "as_graph" in each["arg"])["graph"]
    for meta in body["tensor_values"].values():
        meta["sizes"][0]["as_expr"]["expr_str"] = "Symbol('evil', zero=True, positive=True)"
    path.write_bytes(write_records(stored | {name: json.dumps(document).encode()}))
    assert {"contradict each other" in fault.text for fault in find_faults(path)} == {True}
    with pytest.raises(fxpress.Error):
        fxpress.load(path)


def test_much_comparing_is_a_note(tmp_path: Path) -> None:
    symbols = ", ".join(f"Symbol('s{i}', positive=True, integer=True)" for i in range(30))
    path = tmp_path / "file.pt2"
    path.write_bytes(with_number("sizes", "Max(" * 5 + symbols + ")" * 5, None))
    (note,) = look_at(path)
    assert note.is_note
    assert "more time than its limits allow" in note.text


def test_more_expressions_than_memory_allows_are_noted() -> None:
    size = {"as_expr": {"expr_str": _S, "hint": None}}
    graph = {"tensor_values": {}, "sym_float_values": {}, "sym_bool_values": {}}
    uses = Uses({}, 1 << 20)
    uses.note_graph(graph | {"sym_int_values": dict.fromkeys("abc", size)}, "abc", "graph")
    assert (len(uses.found), uses.is_cut) == (3, False)
    assert list(check_expressions(uses)) == []
    many = {f"v{i}": {"as_expr": {"expr_str": f"s{i} +", "hint": None}} for i in range(2000)}
    uses.note_graph(graph | {"sym_int_values": many}, many, "graph")
    assert uses.is_cut
    found = list(check_expressions(uses))
    assert len(found) < 2000
    assert [text for text, is_note in found if is_note] == [
        "there are too many expressions for a file of this size: not all are read here"
    ]


@pytest.mark.slow("processes of their own")
def test_without_torch_and_sympy(tmp_path: Path) -> None:
    path = tmp_path / "file.pt2"
    path.write_bytes(with_number("sizes", f"FloorDiv({_S}, 2) + Max(s17, 3)", None))
    assert_without_torch("verify", str(path))
    path.write_bytes(with_number("sizes", "Symbol('\N{ESCAPE}[2J')", None))
    done = run("verify", str(path))
    assert done.returncode == 1
    assert "\N{ESCAPE}" not in done.stdout

"""`fxpress verify` and the metadata of nodes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import fxpress
from fxpress import archive
from fxpress._tools.inspect.verification import look_at
from tests.support.expressions import edited_graph


def nested(depth: int) -> str:
    """The text of sources of a source, and so on."""
    source = '{"name": "n", "target": "t", "graph_id": 1, "pass_name": "p", "action": "CREATE", '
    return f'[{source}"from_node": ' * depth + "[]" + "}]" * depth


def with_metadata(key: str, text: str) -> bytes:
    def edit(graph: Any) -> None:
        graph["nodes"][1]["metadata"][key] = text

    return edited_graph(edit)


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("from_node", nested(600), "from_node is damaged"),
        ("from_node", "[" * 600, "from_node is damaged"),
        ("from_node", "{", "from_node is damaged"),
        ("from_node", "5", "from_node is damaged"),
        ("from_node", '[{"name": 1}]', "from_node is damaged"),
        ("from_node", '[{"pass_name": "x"}], "from_node": [', "from_node is damaged"),
        ("from_node", nested(3).replace('"p"', r'"p\n    evil()"'), "is no line of text"),
        ("from_node", nested(1).replace('"n"', r'"n\u2028"'), ""),
        ("source_fn_stack", "name", "an entry of source_fn_stack is not a pair: 'name'"),
        ("source_fn_stack", "a,torch.add;b,c,d", "an entry of source_fn_stack is not a pair"),
        ("source_fn_stack", "a,torch.add;", "an entry of source_fn_stack is not a pair: ''"),
        ("nn_module_stack", "key,path", "nn_module_stack"),
        ("nn_module_stack", "a,b,c;d,e,f,g", "nn_module_stack"),
        ("nn_module_stack", "a,b[0,c", "nn_module_stack"),
        ("custom", '{"a": ' * 600 + "1" + "}" * 600, "more than 500 values within each other"),
    ],
)
def test_refused(key: str, text: str, said: str, tmp_path: Path) -> None:
    data = with_metadata(key, text)
    path = tmp_path / "file.pt2"
    path.write_bytes(data)
    faults = [fault.text for fault in look_at(path) if not fault.is_note]
    try:
        archive.load(io.BytesIO(data))
    except fxpress.Error:
        assert said in "\n".join(faults)
        assert faults
    else:
        assert not said
        assert not faults


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("from_node", "null"),
        ("from_node", "[]"),
        ("from_node", nested(20)),
        ("source_fn_stack", "add,_operator.add;sum,torch.sum"),
        ("source_fn_stack", "evil,os.system"),
        ("nn_module_stack", "key,,module.Class;k,L['self'].a[0, 1],b.C"),
        ("custom", json.dumps({"a": [1, {"b": None}]})),
        ("other", "{[("),
    ],
)
def test_taken(key: str, text: str, tmp_path: Path) -> None:
    data = with_metadata(key, text)
    path = tmp_path / "file.pt2"
    path.write_bytes(data)
    archive.load(io.BytesIO(data))
    assert look_at(path) == []


def test_functions_of_extensions_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "file.pt2"
    path.write_bytes(with_metadata("source_fn_stack", "a,#nobody:op"))
    (note,) = look_at(path)
    assert note.is_note
    with pytest.raises(fxpress.Error):
        fxpress.load(path)


def test_equal_texts_are_named_once(tmp_path: Path) -> None:
    def edit(graph: Any) -> None:
        for node in graph["nodes"]:
            node["metadata"]["from_node"] = "{"

    path = tmp_path / "file.pt2"
    path.write_bytes(edited_graph(edit))
    (fault,) = look_at(path)
    assert fault.text.startswith("graph.nodes[0]: from_node is damaged: ")

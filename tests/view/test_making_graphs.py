"""Texts that nodes of a graph share, and the cost of creating a large graph."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fxpress._tools.view.graphs import graphs_of_text
from fxpress._tools.view.namespaces import Namespaces

# The process of the tests keeps its objects from the collector, so that nothing is done there.
_OLD = """
import gc, sys
at_start = gc.get_freeze_count()
from fxpress._tools.view import graphs
graphs._MANY = 0
if sys.argv[2] == "frozen":
    gc.freeze()
((graph, *_),) = graphs.graphs_by_program(sys.argv[1]).values()
assert gc.isenabled()
young = any(each is graph.nodes for each in gc.get_objects(generation=0))
print(young, gc.get_freeze_count() > at_start, at_start > 0)
"""


class Floats(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(min=-0.0) + x.clamp(min=0.0)


def document_of(model: nn.Module, path: Path) -> dict[str, Any]:
    torch.export.save(torch.export.export(model, (torch.randn(3),)), path)
    with zipfile.ZipFile(path) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("models/model.json"))
        made: dict[str, Any] = json.loads(archive.read(name))
    return made


def text_of(document: dict[str, Any], count: int) -> bytes:
    """The text of a program with more nodes, each of which takes the one before it."""
    document = json.loads(json.dumps(document))
    graph = document["graph_module"]["graph"]
    node = graph["nodes"][-1]
    before = own = node["outputs"][0]["as_tensor"]["name"]
    for number in range(count):
        name = f"copy_{number}"
        inputs = [{**each, "arg": {"as_tensor": {"name": before}}} for each in node["inputs"][:2]]
        outputs = [{"as_tensor": {"name": name}}]
        graph["nodes"].append({**node, "name": name, "inputs": inputs, "outputs": outputs})
        graph["tensor_values"][name] = graph["tensor_values"][own]
        before = name
    return json.dumps(document).encode()


def test_zeros_have_their_signs(tmp_path: Path) -> None:
    text = json.dumps(document_of(Floats(), tmp_path / "model.pt2")).encode()
    (graph,) = graphs_of_text(text, "model", "here")
    found = [text for node in graph.nodes for name, text in node.constants if name == "min"]
    assert found == ["-0.0", "0.0"]


def test_a_value_that_is_computed_twice(tmp_path: Path) -> None:
    """A damaged file: both have the facts of the one description that there is."""
    document = document_of(Floats(), tmp_path / "model.pt2")
    nodes = document["graph_module"]["graph"]["nodes"]
    nodes.append(nodes[-1])
    (graph,) = graphs_of_text(json.dumps(document).encode(), "model", "here")
    *_, first, second, _ = graph.nodes
    assert first.results == second.results
    assert str(second.results[0].tensor.tensor) == "float32[3]"


def test_the_last_class_of_a_module_is_shown() -> None:
    """A damaged file says twice what a module is; what it says last holds, as in `inspect`."""
    outer, other = "k,a,lib.One", "k,a,lib.Two"
    stacks = [f"{outer};k,a.b,lib.Leaf", other, f"{outer};k,a.c,lib.Leaf"]
    assert Namespaces(dict.fromkeys(stacks, 1)).of_stack(stacks[0])[0] == "a: One/b: Leaf"
    stacks = [stacks[0], stacks[2], other]
    assert Namespaces(dict.fromkeys(stacks, 1)).of_stack(stacks[0])[0] == "a: Two/b: Leaf"


@pytest.mark.parametrize("kept", ["frozen", "free"])
def test_graphs_are_old_for_the_collector(kept: str, tmp_path: Path) -> None:
    """Unless the process keeps objects from it, which stay kept."""
    document_of(Floats(), tmp_path / "model.pt2")
    command = [sys.executable, "-c", _OLD, str(tmp_path / "model.pt2"), kept]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    young, are_kept, kept_at_start = done.stdout.split()
    assert are_kept == str(kept == "frozen")
    if kept == "free" and kept_at_start == "False":  # Python 3.12 starts with frozen objects
        assert young == "False"


@pytest.mark.slow("programs of up to 32,000 nodes")
def test_time_grows_with_the_nodes(tmp_path: Path) -> None:
    """A node takes about as long among 32,000 as among 4,000."""
    document = document_of(Floats(), tmp_path / "model.pt2")

    def seconds(count: int) -> float:
        text, times = text_of(document, count), []
        for _ in range(3):
            start = time.process_time()
            graphs_of_text(text, "model", "here")
            times.append(time.process_time() - start)
        return min(times) / count

    assert seconds(32_000) < 2.5 * seconds(4_000)

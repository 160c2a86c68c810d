"""The graphs of Model Explorer have the nodes, edges and layers of the program."""

from __future__ import annotations

import contextlib
import json
import operator
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from fxpress._files.format.package import InspectionError
from fxpress._tools.cli import app
from fxpress._tools.view.graphs import graphs_by_program, graphs_of_text
from fxpress._tools.view.model_explorer import plain_graph
from fxpress._tools.view.overlays import overlays_of
from fxpress.view import graphs_of
from tests.fuzz.hostile import hostile_files
from tests.support.command_line import assert_without_torch, dynamic_program


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return dynamic_program()


@pytest.fixture
def path(program: ExportedProgram, tmp_path: Path) -> Path:
    torch.export.save(program, tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


def attributes(item: dict[str, Any]) -> dict[str, Any]:
    return {pair["key"]: pair["value"] for pair in item["attrs"]}


def values_of(graph: dict[str, Any]) -> dict[tuple[str, str], str]:
    """Return the name of each value, by its node and the number of its output."""
    return {
        (node["id"], item["id"]): attributes(item)["__tensor_tag"]
        for node in graph["nodes"]
        for item in node["outputsMetadata"]
    }


def results_of(node: dict[str, Any]) -> list[str]:
    return [attributes(item)["__tensor_tag"] for item in node["outputsMetadata"]]


def edges_of(graph: dict[str, Any]) -> set[tuple[str, str]]:
    """Return (value, first value of the node that takes it) for each edge."""
    values = values_of(graph)
    edges = set()
    for node in graph["nodes"]:
        for edge in node["incomingEdges"]:
            source = values[edge["sourceNodeId"], edge["sourceNodeOutputId"]]
            edges.add((source, values.get((node["id"], "0"), node["id"])))
    return edges


def expected_edges(module: torch.fx.GraphModule) -> set[tuple[str, str]]:
    """Return the same of a graph of torch, where `getitem` names the results of an operator."""
    first: dict[torch.fx.Node, str] = {}
    for node in module.graph.nodes:
        results = [user for user in node.users if user.target is operator.getitem]
        by_index = {user.args[1]: user.name for user in results}
        first[node] = by_index.get(0, node.name) if results else node.name
    edges = set()
    for node in module.graph.nodes:
        if node.target is operator.getitem:
            continue
        for given in node.all_input_nodes:
            if given.op != "get_attr":
                edges.add((given.name, "output" if node.op == "output" else first[node]))
    return edges


def test_edges_are_those_of_the_program(path: Path, program: ExportedProgram) -> None:
    graph, *bodies = graphs_of(path)
    assert edges_of(graph) == expected_edges(program.graph_module)
    assert len(bodies) == 4
    inside = [each for node in graph["nodes"] for each in node.get("subgraphIds", [])]
    assert inside == [body["id"] for body in bodies]


def test_layers_are_the_modules(path: Path, program: ExportedProgram) -> None:
    graph = graphs_of(path)[0]
    nodes = {attributes(node).get("name"): node for node in graph["nodes"]}
    for node in program.graph.nodes:
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        stack = [p for p, _ in node.meta.get("nn_module_stack", {}).values() if p[:1] != "_"]
        found = nodes.get(node.name)
        if found is None:  # an operator with several results is named by them
            found = next(n for n in graph["nodes"] if node.name in results_of(n))
        layer = [part.partition(":")[0] for part in found["namespace"].split("/") if part]
        assert ".".join(layer) == (stack[-1] if stack else "")
    names = graph["groupNodeAttributes"]
    assert names["first: Block/linear: Linear"]["class"] == "torch.nn.modules.linear.Linear"
    state = {k: v for k, v in program.state_dict.items() if k.startswith("first.")}
    assert names["first: Block"]["bytes of the state"] == f"{sum(t.nbytes for t in state.values())}"
    assert any(key.startswith("symbol") for key in names[""])


def test_facts(path: Path) -> None:
    graph = graphs_of(path)[0]
    linear = next(node for node in graph["nodes"] if node["label"] == "linear")
    assert [attributes(i)["__tensor_tag"] for i in linear["inputsMetadata"]] == [
        "input",
        "weight",
        "bias",
    ]
    edge = linear["incomingEdges"][1]
    source = next(n for n in graph["nodes"] if n["id"] == edge["sourceNodeId"])
    weight = attributes(source["outputsMetadata"][int(edge["sourceNodeOutputId"])])
    assert weight["shape"] == "float32[4, 4]"
    assert weight["bytes"] == "64"
    assert "forward" in attributes(linear)["source"]
    users = attributes(linear)["users"]
    assert users["type"] == "node_ids"
    scale = next(n for n in graph["nodes"] if attributes(n).get("state") == "scale")
    assert (scale["namespace"], attributes(scale)["kind"]) == ("", "parameter")


class Products(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 12)
        self.convolution = nn.Conv2d(2, 4, 3, stride=2, padding=1)

    def forward(self, x: torch.Tensor, image: torch.Tensor, q: torch.Tensor) -> Any:
        k = torch.nn.functional.pad(q, (0, 0, 0, 3))
        attention = nn.functional.scaled_dot_product_attention(q, k, k)
        y = self.linear(x)
        product = torch.matmul(y.transpose(-1, -2), y)
        flat = torch.addmm(x[0, :, :1], x[0], x[0].t())
        return attention, product, torch.bmm(y, product), flat, self.convolution(image)


def test_flops_are_torchs(tmp_path: Path) -> None:
    inputs = (torch.randn(2, 5, 8), torch.randn(1, 2, 9, 9), torch.randn(2, 3, 4, 8))
    model = Products()
    torch.export.save(torch.export.export(model, inputs), tmp_path / "model.pt2")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    graphs = graphs_by_program(tmp_path / "model.pt2")
    overlays = overlays_of(graphs)
    labels = {node.id: node.label for node in graphs["model"][0].nodes}
    counted = {labels[n]: v["value"] for n, v in overlays["FLOPs"]["model"]["results"].items()}
    attention = counted.pop("scaled_dot_product_attention")  # not every torch counts it on a CPU
    q, k = inputs[2].shape, (2, 3, 7, 8)
    assert attention == sdpa_flop_count(q, k, k)
    assert len(counted) == 5
    by_operator = counter.get_flop_counts()["Global"]
    others = {op: n for op, n in by_operator.items() if "scaled_dot_product" not in str(op)}
    assert sum(counted.values()) == sum(others.values())
    state = overlays["bytes of state"]["model"]["results"].values()
    assert sum(each["value"] for each in state) == sum(p.nbytes for p in model.parameters())


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 2)
        self.two = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, self.two, self.one, (x,))


def test_flops_of_branches_are_torchs(tmp_path: Path) -> None:
    model = Branches().requires_grad_(False)
    program = torch.export.export(model, (torch.randn(3, 8),))
    torch.export.save(program, tmp_path / "model.pt2")
    with FlopCounterMode(display=False) as counter:
        program.module()(torch.randn(3, 8))
    graphs = graphs_by_program(tmp_path / "model.pt2")
    labels = {node.id: node.label for node in graphs["model"][0].nodes}
    results = overlays_of(graphs)["FLOPs"]["model"]["results"]
    counted = {labels.get(node): each["value"] for node, each in results.items()}
    assert counted["cond"] == counter.get_total_flops() == 2 * 3 * (8 * 4 + 4 * 2)


def test_programs_and_files_give_the_same(path: Path, program: ExportedProgram) -> None:
    assert graphs_of(program) == graphs_of(path)
    with pytest.raises(TypeError):
        graphs_of(3)


def test_names_stay_texts(tmp_path: Path, path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("models/model.json"))
        text = archive.read(name).replace(b"first.linear", b"first.a/b<script>")
    graph, *_ = graphs_of_text(text, "model", "here")
    layers = {node.layer for node in graph.nodes}
    assert any("a\u2215b<script>" in layer for layer in layers)
    assert all(layer.count("/") <= 2 for layer in layers)
    json.dumps(plain_graph(graph))


def test_hostile_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in hostile_files().values():
        path.write_bytes(data)
        with contextlib.suppress(InspectionError):
            json.dumps(graphs_of(path))


def test_values_that_nothing_computes(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("models/model.json"))
        document = json.loads(archive.read(name))
    nodes = document["graph_module"]["graph"]["nodes"]
    nodes.reverse()
    with pytest.raises(InspectionError, match="is used before it is computed"):
        graphs_of_text(json.dumps(document).encode(), "model", "here")


def test_model_explorer_takes_them(path: Path) -> None:
    manager = pytest.importorskip("model_explorer.extension_manager", reason="no Model Explorer")
    extensions = manager.ExtensionManager(["fxpress.view"])
    extensions.load_extensions()
    assert "fxpress" in {each["id"] for each in extensions.get_extensions_metadata()}
    command = {
        "cmdId": "convert",
        "extensionId": "fxpress",
        "modelPath": str(path),
        "settings": {},
    }
    made = extensions.run_cmd(command)["graphs"]
    assert [graph["id"] for graph in made] == [graph["id"] for graph in graphs_of(path)]
    assert len(made[0]["nodes"]) == len(graphs_of(path)[0]["nodes"])


def test_as_a_command(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "graphs.json"
    assert_without_torch("view", str(path), "--json", str(target))
    assert json.loads(target.read_text()) == {"graphs": graphs_of(path)}
    assert (tmp_path / "graphs.FLOPs.json").exists()
    assert app.run(["view", str(path), str(path), "--json", str(target)]) == 0
    graphs = json.loads(target.read_text())["graphs"]
    known = {graph["id"] for graph in graphs}
    assert len(known) == len(graphs)
    inside = [g for graph in graphs for node in graph["nodes"] for g in node.get("subgraphIds", [])]
    assert inside
    assert set(inside) <= known
    assert app.run(["view", str(Path(__file__)), "--json", str(target)]) == 2


@pytest.mark.deep("a program of 100,000 nodes")
def test_many_nodes(path: Path) -> None:
    """It takes a few times as long as to parse the text, however fast the machine is."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith("models/model.json"))
        document = json.loads(archive.read(name))
    graph = document["graph_module"]["graph"]
    node = next(n for n in graph["nodes"] if "aten.mul" in n["target"])
    own = node["outputs"][0]["as_tensor"]["name"]
    meta = graph["tensor_values"][own]
    for number in range(100_000):
        copy = {**node, "outputs": [{"as_tensor": {"name": f"copy_{number}"}}]}
        graph["nodes"].append(copy)
        graph["tensor_values"][f"copy_{number}"] = meta
    text = json.dumps(document).encode()
    start = time.process_time()
    json.loads(text)
    parsed = time.process_time()
    made = graphs_of_text(text, "model", "here")
    assert time.process_time() - parsed < 3.5 * (parsed - start)
    assert len(made[0].nodes) > 100_000

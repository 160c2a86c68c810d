"""Nodes of two programs are matched as `fxpress.diff` matches them, whatever their names are."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram, export
from torch.fx import Node

import fxpress
import fxpress.view
from fxpress._tools.cli import app
from fxpress._tools.view.comparison import compare
from fxpress._tools.view.matching import ALONE, CHANGED, FOLLOWS, SAME, Matching
from fxpress._tools.view.sources import source_of

_NODE = re.compile(r"graph_module\.graph\.nodes\[(\d+)\]")


class Block(nn.Module):
    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor], scale: float) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.activation = activation
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.activation(self.linear(x)) * self.scale


class Model(nn.Module):
    def __init__(
        self,
        activation: Callable[[torch.Tensor], torch.Tensor] = torch.relu,
        scale: float = 1.0,
        *,
        is_longer: bool = False,
    ) -> None:
        super().__init__()
        self.first = Block(activation, 1.0)
        self.second = Block(torch.relu, scale)
        self.is_longer = is_longer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        y = y.cos() if self.is_longer else y
        return self.second(y) + x.sin()


def exported(*args: Any, **kwargs: Any) -> ExportedProgram:
    return export(Model(*args, **kwargs), (torch.ones(2, 4),))


def matched(first: ExportedProgram, second: ExportedProgram) -> Matching:
    (found,) = compare(source_of(first, "first"), source_of(second, "second"))
    assert found.matching is not None
    assert found.is_same == (fxpress.graph_hash(first) == fxpress.graph_hash(second))
    return found.matching


def operators(program: ExportedProgram) -> list[Node]:
    """The nodes that files have, in order."""
    return [node for node in program.graph.nodes if node.op == "call_function"]


def by_name(program: ExportedProgram, states: dict[str, str]) -> dict[str, str]:
    calls = operators(program)
    numbers = {key: int(key.split()[1]) for key in states if key.startswith("node ")}
    return {calls[number].name: states[key] for key, number in numbers.items()}


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((torch.sigmoid,), {}), ((torch.relu, 2.0), {}), ((), {"is_longer": True})],
    ids=["operator", "constant", "more"],
)
def test_changes_are_those_of_diff(args: Any, kwargs: Any) -> None:
    programs = exported(), exported(*args, **kwargs)
    states = matched(*programs).states
    places = [match for d in fxpress.diff(*programs, limit=99) if (match := _NODE.match(d.path))]
    assert places
    marks = (CHANGED, ALONE)
    named = {f"node {place[1]}" for place in places}
    assert all(any(side.get(number) in marks for side in states) for number in named)
    differing = [number for number, state in states[0].items() if state in marks]
    assert set(differing) <= named


def test_states() -> None:
    first, second = exported(), exported(torch.sigmoid)
    matching = matched(first, second)
    assert by_name(first, matching.states[0]) == {
        "linear": SAME,
        "relu": CHANGED,
        "mul": FOLLOWS,
        "linear_1": FOLLOWS,
        "relu_1": FOLLOWS,
        "mul_1": FOLLOWS,
        "sin": SAME,
        "add": FOLLOWS,
    }
    assert by_name(second, matching.states[1])["sigmoid"] == CHANGED
    assert matching.states[0]["output"] == FOLLOWS


def test_a_node_more() -> None:
    first, second = exported(), exported(is_longer=True)
    matching = matched(first, second)
    assert by_name(second, matching.states[1])["cos"] == ALONE
    assert ALONE not in matching.states[0].values()
    calls = operators(first), operators(second)
    for mine, theirs in matching.pairs.items():
        if mine.startswith("node "):
            mine_node, their_node = (
                side[int(key.split()[1])] for side, key in zip(calls, (mine, theirs), strict=True)
            )
            assert mine_node.target == their_node.target


def test_names_do_not_matter() -> None:
    first, second = exported(), exported()
    for number, node in enumerate(second.graph.nodes):
        if node.op == "call_function":
            node._rename(f"other_{number}")
    specs = second.graph_signature.output_specs
    specs[0].arg.name = next(iter(second.graph.output_node().all_input_nodes)).name
    second.graph_module.recompile()
    matching = matched(first, second)
    assert set(matching.states[0].values()) == {SAME}
    renamed = matched(exported(torch.sigmoid), second)
    assert list(renamed.states[0].values()).count(CHANGED) == 1


def test_modules_of_other_names() -> None:
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = Block(torch.relu, 1.0), Block(torch.relu, 1.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(x)) + x.sin()

    matching = matched(exported(), export(Other(), (torch.ones(2, 4),)))
    assert ALONE not in matching.states[0].values()
    assert ALONE not in matching.states[1].values()


def test_as_a_command(tmp_path: Path) -> None:
    for name, program in (("a", exported()), ("b", exported(is_longer=True))):
        torch.export.save(program, tmp_path / f"{name}.pt2")
    files = [str(tmp_path / f"{name}.pt2") for name in "ab"]
    assert app.run(["view", *files, "--json", str(tmp_path / "graphs.json")]) == 0
    difference = json.loads((tmp_path / "graphs.difference.json").read_text())
    assert set(difference) == {"a.pt2: model", "b.pt2: model"}
    values = [each["value"] for each in difference["b.pt2: model"]["results"].values()]
    assert values.count(ALONE) == 1
    mapping = json.loads((tmp_path / "graphs.counterparts.json").read_text())["mapping"]
    graphs = json.loads((tmp_path / "graphs.json").read_text())["graphs"]
    ids = [{node["id"] for node in graph["nodes"]} for graph in graphs]
    assert set(mapping) == ids[0]
    assert set(mapping.values()) < ids[1]


def test_what_cannot_be_hashed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    @torch.library.custom_op("fxpress_view::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(lambda x: torch.empty_like(x))
    torch.export.save(exported(twice), tmp_path / "a.pt2")
    found = compare(*(source_of(tmp_path / "a.pt2", name) for name in "ab"))
    assert [each.is_same for each in found] == [None]
    assert "fxpress_view.twice" in found[0].reason
    fxpress.view.write_page(tmp_path / "page.html", tmp_path / "a.pt2", tmp_path / "a.pt2")
    assert "Cannot determine" in (tmp_path / "page.html").read_text()


def test_a_file_without_programs(tmp_path: Path) -> None:
    torch.export.save(exported(), tmp_path / "a.pt2")
    with (
        zipfile.ZipFile(tmp_path / "a.pt2") as archive,
        zipfile.ZipFile(tmp_path / "empty.pt2", "w") as empty,
    ):
        for name in archive.namelist():
            if "/models/" not in name:
                empty.writestr(name, archive.read(name))
    fxpress.view.write_page(tmp_path / "page.html", tmp_path / "a.pt2", tmp_path / "empty.pt2")
    assert "empty.pt2" in (tmp_path / "page.html").read_text()

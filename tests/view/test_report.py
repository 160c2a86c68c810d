"""The page of a report says what torch says, and nothing of a file becomes markup."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram, export
from torch.utils.flop_counter import FlopCounterMode

import fxpress.view
from fxpress._tools.cli import app
from fxpress._tools.view.sources import source_of
from fxpress.split_module import split_module
from tests.support.command_line import assert_without_torch, dynamic_program
from tests.view.hostile import MARKUP, Page, hostile_copy

# What the template, and pictures, consist of.
ELEMENTS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "h4", "section", "div"),
    *("p", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"),
    *("span", "svg", "rect", "g", "polygon", "path", "text"),
}
ATTRIBUTES = {
    *("lang", "charset", "http-equiv", "content", "name", "class", "open", "role", "width"),
    *("height", "viewbox", "transform", "fill", "stroke", "points", "d", "x", "y"),
    *("text-anchor", "font-family", "font-size", "stroke-dasharray"),
}


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Conv2d(2, 4, 3, padding=1)
        self.back = nn.ConvTranspose2d(4, 2, 2, stride=2)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        self.tied = nn.Linear(8, 8)
        self.tied.weight = self.inner[0].weight
        self.register_buffer("scale", torch.ones(3))

    def forward(self, image: torch.Tensor, x: torch.Tensor) -> Any:
        chosen = torch.cond(x.sum() > 0, lambda x: x @ x.t() @ x, lambda x: x.clone(), (x,))
        y = self.inner(self.tied(chosen)) * self.scale
        return self.back(self.wide(image)), y @ torch.ones(3)


@pytest.fixture(scope="module")
def inputs() -> tuple[torch.Tensor, ...]:
    return torch.randn(2, 2, 6, 6), torch.ones(5, 8)


def saved(program: ExportedProgram, folder: Path, name: str = "model.pt2") -> Path:
    torch.export.save(program, folder / name)
    return folder / name


def page_of(*paths: Path) -> Page:
    target = paths[0].with_name("page.html")
    fxpress.view.write_page(target, *paths)
    return Page(target.read_text())


def test_numbers_are_torchs(tmp_path: Path, inputs: Any) -> None:
    model = Layers()
    page = page_of(saved(export(model, inputs), tmp_path))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(*inputs)
    torch._dynamo.reset()  # after a torch.cond that ran by itself, torch 2.13 traces no other
    counts = counter.get_flop_counts()
    assert page.row("FLOPs") == ["FLOPs", f"{counter.get_total_flops():,}"]
    assert page.row("parameters") == [
        "parameters",
        f"{sum(p.numel() for p in model.parameters()):,}",
    ]
    state = [*model.parameters(), *model.buffers()]
    assert page.row("bytes")[1] == f"{sum(t.nbytes for t in state):,}"
    for path in ("wide", "back", "inner", "tied"):
        module = model.get_submodule(path)
        _, parameters, bytes_, _, flops = page.row(path)
        assert parameters == f"{sum(p.numel() for p in module.parameters()):,}"
        assert bytes_ == f"{sum(p.nbytes for p in module.parameters()):,}"
        assert flops == f"{sum(counts[f'Layers.{path}'].values()):,}"


def test_operators_and_types(tmp_path: Path) -> None:
    program = dynamic_program()
    page = page_of(saved(program, tmp_path))
    targets = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert page.row("aten.linear.default")[1] == f"{targets.count('aten.linear.default')}"
    sizes: dict[torch.dtype, int] = {}
    for tensor in program.state_dict.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    for dtype, size in sizes.items():
        assert page.row(str(dtype).removeprefix("torch."))[1] == f"{size} B"
    (symbol,) = program.range_constraints
    assert page.row(str(symbol)) == [str(symbol), "2", "64"]
    assert "a size is a symbol (2 operators)" in page.text
    assert page.row("FLOPs")[1].startswith("at least ")
    assert page.row("first")[-1] == "\u2013"  # none of its products has sizes that are known


def test_modules_of_which_a_part_is_counted(tmp_path: Path) -> None:
    class Parts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.known, self.unknown = nn.Linear(8, 4), nn.Bilinear(8, 8, 2)
            self.without = nn.ReLU()

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.known(x), self.without(self.unknown(x, x))

    page = page_of(saved(export(Parts(), (torch.ones(5, 8),)), tmp_path))
    operations = f"{2 * 5 * 8 * 4:,}"
    assert page.row("known")[-1] == operations
    assert page.row("unknown")[-1] == "\u2013"
    assert page.row("without")[-1] == "0"
    assert page.row("(root)")[-1] == f"\u2265 {operations}"


def test_partitions_are_drawn(tmp_path: Path, inputs: Any) -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    traced = torch.fx.symbolic_trace(Chain())
    order = {n: i for i, n in enumerate(n for n in traced.graph.nodes if n.op == "call_module")}
    split = split_module(traced, None, lambda node: order.get(node, 0))
    path = saved(export(split, (torch.ones(5, 8),)), tmp_path)
    fxpress.view.write_page(tmp_path / "page.html", path)
    svg = re.findall(r"<svg.*?</svg>", (tmp_path / "page.html").read_text(), re.S)[0]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    assert [t for t in texts if t.startswith("submod_")] == ["submod_0", "submod_1", "submod_2"]
    assert texts.count("640 FLOPs") == 3  # 2 * 5 * 8 * 8
    assert texts.count("288 B of state") == 3  # (8 * 8 + 8) * 4
    assert texts.count("1 value") == texts.count("160 B") == 2  # 5 * 8 * 4
    overlay = [
        node["value"]
        for node in fxpress.view.data.overlays(path)["partition"]["model"]["results"].values()
    ]
    assert sorted(overlay)[-1] == 2


def test_two_files(tmp_path: Path, inputs: Any) -> None:
    first, second = Layers(), Layers()
    second.inner[1] = nn.GELU()
    paths = [
        saved(export(model, inputs), tmp_path, f"{name}.pt2")
        for name, model in (("a", first), ("b", second))
    ]
    page = page_of(*paths)
    assert "They do not compute the same." in page.text
    assert page.row("inner.1") == [
        "inner.1",
        "relu",
        "gelu",
        "target: aten.relu.default, aten.gelu.default",
    ]
    assert "Both compute the same" in page_of(paths[0], paths[0]).text


def test_nothing_of_a_file_is_markup(tmp_path: Path, inputs: Any) -> None:
    for number, program in enumerate((dynamic_program(), export(Layers(), inputs))):
        path = saved(program, tmp_path, f"{number}.pt2")
        target = tmp_path / f"hostile{number}.pt2"
        hostile_copy(path, target)
        for files in ((target,), (target, path)):
            page = page_of(*files)
            assert page.elements <= ELEMENTS
            assert {name for name, _ in page.attributes} <= ATTRIBUTES
            assert page.text.count(MARKUP) > 20
            assert not any("alert" in (value or "") for _, value in page.attributes)


def test_characters_that_move_others_are_escaped(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("a\u202eb\x1b[0m", nn.Linear(2, 2))
    page = page_of(saved(export(model, (torch.ones(1, 2),)), tmp_path))
    assert "\u202e" not in page.text
    assert "\x1b" not in page.text
    assert r"a\u202eb\x1b[0m" in page.text


def test_programs_and_files_give_the_same(tmp_path: Path, inputs: Any) -> None:
    program = export(Layers(), inputs)
    path = saved(program, tmp_path)
    fxpress.view.write_page(tmp_path / "program.html", program)
    rows = [Page((tmp_path / "program.html").read_text()).row("inner"), page_of(path).row("inner")]
    assert rows[0] == rows[1]


def test_as_a_command(tmp_path: Path) -> None:
    path = saved(dynamic_program(), tmp_path)
    target = tmp_path / "page.html"
    assert_without_torch("view", str(path), str(path), "--export", str(target))
    assert target.read_text().startswith("<!DOCTYPE html>")
    assert app.run(["view", str(Path(__file__)), "--export", str(target)]) == 2


def test_tied_weights_count_once(tmp_path: Path) -> None:
    """`Module.parameters` yields each parameter once."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    program = torch.export.export(model, (torch.ones(1, 8),))
    torch.export.save(program, tmp_path / "tied.pt2")
    expected = sum(each.numel() for each in model.parameters())
    for source in (source_of(program, "tied"), source_of(tmp_path / "tied.pt2", "tied")):
        (read,) = source.summary().programs
        root = read.root
        ties = {each.name: each.tied_to for each in read.weights if each.tied_to}
        assert ties == {"1.weight": "0.weight"}
        assert (root.parameters, root.bytes) == (expected, 4 * expected)
        assert root.children["1"].parameters == 8 * 8 + 8

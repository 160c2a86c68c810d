"""The page about programs has the numbers of torch, and nothing of a file becomes markup."""

from __future__ import annotations

import base64
import hashlib
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
    assert page.row("bytes of state")[1] == f"{sum(t.nbytes for t in state):,}"
    for path in ("wide", "back", "inner", "tied"):
        module = model.get_submodule(path)
        _, _, parameters, bytes_, _, flops = page.module(path)
        assert parameters == f"{sum(p.numel() for p in module.parameters()):,}"
        assert bytes_ == f"{sum(p.nbytes for p in module.parameters()):,}"
        assert flops == f"{sum(counts[f'Layers.{path}'].values()):,}"


def test_types_and_symbols(tmp_path: Path) -> None:
    program = dynamic_program()
    page = page_of(saved(program, tmp_path))
    sizes: dict[torch.dtype, int] = {}
    for tensor in program.state_dict.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    for dtype, size in sizes.items():
        assert page.row(str(dtype).removeprefix("torch.")) == [str(dtype)[6:], f"{size}"]
    (symbol,) = program.range_constraints
    (inputs, _) = program.example_inputs or ((), {})
    assert page.row(str(symbol)) == [str(symbol), "2", "64", str(inputs[0].shape[0])]


def test_operations_are_those_of_the_example_inputs(tmp_path: Path, inputs: Any) -> None:
    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.out = nn.Linear(8, 24), nn.Linear(24, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            heads = self.wide(x).view(x.shape[0], x.shape[1], 4, 6).transpose(1, 2)
            return self.out((heads @ heads.mT @ heads).transpose(1, 2).flatten(2))

    model, x = Heads(), torch.ones(3, 5, 8)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=99)
    page = page_of(saved(export(model, (x,), dynamic_shapes=({0: batch, 1: length},)), tmp_path))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x)
    total, _, sizes = page.row("FLOPs")[1].partition(" with ")
    assert total == f"{counter.get_total_flops():,}"
    assert [text.split(" = ")[1] for text in sizes.split(", ")] in (["3", "5"], ["5", "3"])
    counts = counter.get_flop_counts()
    assert page.module("out")[-1] == f"{sum(counts['Heads.out'].values()):,}"


def test_sizes_that_are_not_known(tmp_path: Path) -> None:
    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.known, self.unknown = nn.Linear(8, 4), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.known(x)
            return self.unknown(y[y.sum(1) > 0])

    page = page_of(saved(export(Chosen(), (torch.ones(5, 8),)), tmp_path))
    assert page.row("FLOPs")[1] == f"at least {2 * 5 * 8 * 4:,}"
    assert page.program["notes"] == ["linear: a size is unknown (1 operator)"]
    assert page.module("unknown")[-1] == "\u2013"


def test_nodes_are_torchs(tmp_path: Path, inputs: Any) -> None:
    program = export(Layers(), inputs)
    page = page_of(saved(program, tmp_path))
    bodies = [program.graph_module.get_submodule(f"{side}_graph_0") for side in ("true", "false")]
    for number, module in enumerate((program.graph_module, *bodies)):
        shown = page.nodes(number)
        for node in module.graph.nodes:
            if node.op in ("get_attr", "output") or "getitem" in node.name:
                continue
            found = shown[node.name]
            values = node.meta["val"] if "cond" in node.name else [node.meta["val"]]
            assert found["results"] == [f"{str(v.dtype)[6:]}{[*v.shape]}" for v in values]
            sources = {each.name for each in node.all_input_nodes if each.op != "get_attr"}
            assert set(found["arguments"].values()) == sources
            if node.op == "call_function" and "cond" not in node.name:
                assert found["operator"] == str(node.target)
                *_, (path, *_) = [("",), *node.meta["nn_module_stack"].values()]
                assert found["module"] == path
                assert found["source"].split("\n")[-1] in node.meta["stack_trace"]
    constants = page.nodes()["conv_transpose2d"]
    assert constants["stride"] == "[2, 2]"


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
    for path, expected in (("known", operations), ("unknown", "\u2013"), ("without", "0")):
        assert page.module(path)[-1] == expected
    assert page.module("")[-1] == f"\u2265 {operations}"


def test_partitions(tmp_path: Path, inputs: Any) -> None:
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
    page = page_of(path)
    # Operators, bytes of state, FLOPs (2 * 5 * 8 * 8), and a float32[5, 8] of the one before.
    for number, taken in enumerate(("", *(f"submod_{i}: 1 value, 160 B" for i in range(2)))):
        assert page.row(f"submod_{number}")[1:] == ["1", "288", "640", taken]
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
    (difference,) = page_of(*paths).data["comparisons"]
    assert difference["verdict"] == "They do not compute the same."
    ((heading, _, ((module, *numbers, what),)),) = difference["nodes"]
    assert heading == "Nodes that differ: 1"
    assert (module, what) == ("inner.1", "target: aten.relu.default \u2192 aten.gelu.default")
    labels = [list(page_of(path).nodes())[i] for path, i in zip(paths, numbers, strict=True)]
    assert labels == ["relu", "gelu"]
    (difference,) = page_of(paths[0], paths[0]).data["comparisons"]
    assert difference["verdict"].startswith("Both compute the same")
    assert difference["nodes"] == []


class Attention(nn.Module):
    def __init__(self, activation: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.linear, self.activation = nn.Linear(width, 3 * width), activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.linear(x).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        made = nn.functional.scaled_dot_product_attention(*parts, attn_mask=mask)
        return self.activation(made).transpose(1, 2).reshape(batch, length, -1)


def test_nodes_that_differ_only_in_sizes_are_apart(tmp_path: Path) -> None:
    static, dynamic = (
        {},
        {"dynamic_shapes": ({0: torch.export.Dim("batch"), 1: torch.export.Dim("length")},)},
    )
    paths = [
        saved(
            export(Attention(activation), (torch.ones(2, 5, 8),), **options), tmp_path, f"{i}.pt2"
        )
        for i, (activation, options) in enumerate(
            ((nn.ReLU(), static), (nn.ReLU(), dynamic), (nn.GELU(), dynamic), (nn.ReLU(), static))
        )
    ]
    (difference,) = page_of(paths[0], paths[1]).data["comparisons"]
    ((heading, is_open, rows),) = difference["nodes"]
    assert difference["verdict"] == "They differ only in sizes."
    assert not is_open
    assert heading == f"Nodes that differ only in sizes: {len(rows)}"
    assert any(first is None for _, first, _, _ in rows)  # what computes the sizes
    (heading, is_open, rows), _ = page_of(paths[0], paths[2]).data["comparisons"][0]["nodes"]
    assert (heading, is_open) == ("Nodes that differ: 1", True)
    assert [row[3].split("\n")[0] for row in rows] == [
        "target: aten.relu.default \u2192 aten.gelu.default"
    ]


def test_what_only_looks_like_a_size_is_no_size(tmp_path: Path) -> None:
    def roll(shift: int, dtype: torch.dtype) -> ExportedProgram:
        class Roll(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x.roll(shift, 0).to(dtype)

        return export(Roll(), (torch.ones(4, 2),))

    paths = [
        saved(roll(*each), tmp_path, f"{i}.pt2")
        for i, each in enumerate(((1, torch.float64), (2, torch.float64), (1, torch.float16)))
    ]
    for other, name in ((paths[1], "shifts"), (paths[2], "dtype")):
        ((heading, _, rows),) = page_of(paths[0], other).data["comparisons"][0]["nodes"]
        assert heading == f"Nodes that differ: {len(rows)}"
        assert any(name in row[3] for row in rows)


def test_nothing_of_a_file_is_markup(tmp_path: Path, inputs: Any) -> None:
    (plain,) = {page_of(saved(dynamic_program(), tmp_path, "plain.pt2")).frame}
    for number, program in enumerate((dynamic_program(), export(Layers(), inputs))):
        path = saved(program, tmp_path, f"{number}.pt2")
        target = tmp_path / f"hostile{number}.pt2"
        hostile_copy(path, target)
        for files in ((target,), (target, path)):
            page = page_of(*files)
            assert page.frame == plain  # the rest of the page is the same for all files
            assert "<" not in page.text
            assert sum(each.count(MARKUP) for each in page.data["texts"]) > 20


def test_the_policy_permits_the_script_and_the_style_alone(tmp_path: Path) -> None:
    frame = page_of(saved(dynamic_program(), tmp_path)).frame
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', frame)
    hashes = {}
    for element in ("style", "script"):
        (text,) = re.findall(rf"<{element}>(.*?)</{element}>", frame, re.DOTALL)
        hashes[element] = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    assert dict(part.split(" ", 1) for part in policy.split("; ")) == {
        **dict.fromkeys(("default-src", "base-uri", "form-action"), "'none'"),
        **{f"{element}-src": f"'sha256-{digest}'" for element, digest in hashes.items()},
    }


def test_characters_that_move_others_are_escaped(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("a\u202eb\x1b[0m", nn.Linear(2, 2))
    page = page_of(saved(export(model, (torch.ones(1, 2),)), tmp_path))
    assert not {"\u202e", "\x1b"} & set(str(page.data))
    assert page.module(r"a\u202eb\x1b[0m")


def test_programs_and_files_give_the_same(tmp_path: Path, inputs: Any) -> None:
    program = export(Layers(), inputs)
    path = saved(program, tmp_path)
    fxpress.view.write_page(tmp_path / "program.html", program)
    rows = [
        Page((tmp_path / "program.html").read_text()).module("inner"),
        page_of(path).module("inner"),
    ]
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

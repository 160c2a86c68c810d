"""`fxpress diff`: the differences of `fxpress.diff`, by module, and of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fxpress
from fxpress._tools.cli import app
from fxpress._tools.cli.weights import differing_weights
from fxpress._tools.inspect.nodes import find_nodes
from tests.support.command_line import assert_without_torch


class Block(torch.nn.Module):
    def __init__(self, number: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.number = number

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.linear(x) + self.number).relu()


class Model(torch.nn.Module):
    def __init__(self, one: float, two: float) -> None:
        super().__init__()
        self.one, self.two = Block(one), Block(two)
        self.register_buffer("steps", torch.zeros(2, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.one(x) + self.two(x) + self.steps.sum()


def model(two: float = 2.0) -> Model:
    torch.manual_seed(0)
    return Model(1.0, two)


def saved(module: torch.nn.Module, path: Path) -> str:
    torch.export.save(torch.export.export(module, (torch.ones(2, 4),)), path)
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return saved(model(), tmp_path / "a.pt2"), saved(model(3.0), tmp_path / "b.pt2")


def asked(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    status = app.run(["diff", *arguments, "--json"])
    return status, json.loads(capsys.readouterr().out)


def test_the_same(files: tuple[str, str], tmp_path: Path) -> None:
    again = saved(model(), tmp_path / "again.pt2")
    assert_without_torch("diff", files[0], again)  # the hashes tell
    assert app.run(["diff", files[0], again, "--weights"]) == 0


class Cast(torch.nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous(memory_format=torch.preserve_format).sum(dtype=self.dtype)


def test_types_have_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dtypes = (torch.float64, torch.bfloat16)
    files = [saved(Cast(dtype), tmp_path / f"{dtype}.pt2") for dtype in dtypes]
    _, found = asked(*files, capsys=capsys)
    texts = {(place["first"], place["second"]) for place in found["differences"]}
    assert ("float64", "bfloat16") in texts
    assert not [text for pair in texts for text in pair if text.isdecimal()]


class Viewed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0] * 2, 2)


def test_sizes_are_as_users_write_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes = (None, ({0: torch.export.Dim("n", max=8)},), ({0: torch.export.Dim.AUTO},))
    first, second, third = (
        torch.export.export(Viewed(), (torch.ones(3, 4),), dynamic_shapes=each) for each in shapes
    )
    (symbol,) = map(str, second.range_constraints)
    for programs in ((first, second), (second, first)):
        found = {each.path.rpartition(".")[2]: each for each in fxpress.diff(*programs)}
        assert {found["sizes[0]"].first, found["sizes[0]"].second} == {3, symbol}
        assert {*found["sizes[0]"].texts()} == {"3", symbol}
        assert {*found[symbol].texts()} == {"nothing", "VR[0, 8]"}
    assert f"range_constraints.{symbol}.max_val: 8 → nothing" in map(
        str, fxpress.diff(second, third)
    )
    files = [str(tmp_path / "first.pt2"), str(tmp_path / "second.pt2")]
    fxpress.save(first, files[0])
    fxpress.save(second, files[1])
    assert app.run(["diff", *files]) == 1
    shown = capsys.readouterr().out
    assert f"sizes[0]: 3 → {symbol}" in shown
    assert "Symbol(" not in shown
    assert ".as_" not in shown


def test_a_difference(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    status, found = asked(*files, capsys=capsys)
    (expected,) = fxpress.diff(fxpress.load(files[0]), fxpress.load(files[1]))
    (place,) = found["differences"]
    assert (status, found["weights"]) == (1, [])
    assert place == {
        "path": expected.path.removeprefix("graph_module."),
        "module": "two",
        "nodes": ["add_1", "add_1"],
        "first": "2.0",
        "second": "3.0",
        "operator": "aten.add.Tensor",
    }
    assert app.run(["diff", *files]) == 1
    shown = capsys.readouterr().out
    for said in ("differ in 1 place", "two", "add_1", "2.0", "3.0"):
        assert said in shown


class Activated(torch.nn.Module):
    def __init__(self, *functions: Any) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for function in self.functions:
            x = x + function(x)
        return x


def test_added_nodes_are_grouped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    functions = (torch.sin, torch.relu, torch.relu)
    files = [saved(Activated(*functions[:count]), tmp_path / f"{count}.pt2") for count in (1, 3)]
    found = fxpress.diff(*map(fxpress.load, files))
    # The first addition of the longer program takes the place of the last one of the other.
    assert str(found).splitlines()[0] == "(root)"
    assert any(line == "  added aten.relu.default: relu" for line in str(found).splitlines())
    assert {(each.module, each.operator) for each in found if each.first is None} == {
        ("", "aten.relu.default")
    }
    assert app.run(["diff", *files]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == str(found).splitlines()
    assert str(fxpress.diff(*map(fxpress.load, files[:1] * 2))) == "no differences"


def test_what_differs_can_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`inspect --node` accepts the paths and names that `diff` prints."""
    files = [saved(Chain(*each), tmp_path / f"{each}.pt2") for each in ((2, 1.0), (3, 3.0))]
    _, found = asked(*files, capsys=capsys)
    # The third sin has no counterpart, so that what takes it is compared with it.
    assert [place["nodes"] for place in found["differences"]] == [["add"] * 2, ["cos", "sin_2"]]
    for place in found["differences"]:
        (at_place,), (by_name,) = (
            find_nodes(files[0], node) for node in (place["path"], place["nodes"][0])
        )
        assert at_place == by_name
        assert find_nodes(files[0], f"graph_module.{place['path']}") == [by_name]
    assert app.run(["inspect", files[0], "--node", found["differences"][0]["path"]]) == 0
    assert app.run(["inspect", files[0], "--node", "graph.nodes[99]"]) == 1
    assert app.run(["inspect", files[0], "--node", "graph.nodes[-1]"]) == 1


def test_differences_are_counted_by_module(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    other = saved(Model(5.0, 6.0), tmp_path / "other.pt2")
    _, found = asked(files[0], other, capsys=capsys)
    assert [place["module"] for place in found["differences"]] == ["one", "two"]
    assert app.run(["diff", files[0], other, "--limit", "1"]) == 1
    shown = capsys.readouterr().out
    assert "differ in 2 places" in shown
    assert "5.0" in shown
    assert "6.0" not in shown


class Chain(torch.nn.Module):
    """Calls of `sin` or a `cos` in one module, then a sum in another."""

    def __init__(self, calls: int, alpha: float) -> None:
        super().__init__()
        self.first, self.second = Calls(calls), Sum(alpha)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(x, x.exp()) + self.first(x)


class Calls(torch.nn.Module):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.count):
            x = x.sin()
        return x.cos()


class Sum(torch.nn.Module):
    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.add(x, y) if self.alpha == 1 else torch.add(x, y, alpha=self.alpha)


@pytest.mark.parametrize("calls", [(0, 9), (9, 0), (2, 2)])
def test_modules_of_what_one_program_lacks(
    calls: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [
        saved(Chain(count, alpha), tmp_path / f"{alpha}.pt2")
        for count, alpha in zip(calls, (1, 3), strict=True)
    ]
    for pair in (files, files[::-1]):
        _, found = asked(*pair, capsys=capsys)
        modules = {
            place["path"].rpartition(".")[2]: place["module"] for place in found["differences"]
        }
        assert modules["alpha"] == "second"
        others = {module for what, module in modules.items() if what != "alpha"}
        assert others <= {"first"}


def test_weights(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = model()
    with torch.no_grad():
        changed.one.linear.weight[0, 0] = 3.0
        changed.two.linear.bias[1] = float("nan")
    changed.steps[0] = 2**60 + 1
    path = saved(changed, tmp_path / "changed.pt2")
    assert app.run(["diff", files[0], path]) == 0  # the same is computed
    capsys.readouterr()
    status, found = asked(files[0], path, "--weights", capsys=capsys)
    assert (status, found["differences"]) == (1, [])
    by_name = {each["name"]: each for each in found["weights"]}
    assert set(by_name) == {"one.linear.weight", "two.linear.bias", "steps"}
    was = float(model().one.linear.weight[0, 0].double())
    assert by_name["one.linear.weight"] == {
        "name": "one.linear.weight",
        "absolute": pytest.approx(3 - was, rel=1e-12),
        "relative": pytest.approx((3 - was) / 3, rel=1e-12),
        "what": "1 of 16 items",
    }
    assert by_name["steps"]["absolute"] == float(2**60 + 1)
    assert app.run(["diff", files[0], path, "--weights"]) == 1
    assert "values of 3 weights differ" in capsys.readouterr().out


def test_weights_of_other_shapes() -> None:
    first = torch.export.export(torch.nn.Linear(4, 4), (torch.ones(2, 4),))
    second = torch.export.export(torch.nn.Linear(4, 3, bias=False), (torch.ones(2, 4),))
    found = {
        each["name"]: each["what"]
        for each in differing_weights(first.state_dict, second.state_dict)
    }
    assert found == {"weight": "float32[4, 4] and float32[3, 4]", "bias": "only in the first"}


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    first, second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    second.load_state_dict(first.state_dict())
    with torch.no_grad():
        second.weight[0, 0] += 298
        second.weight[0, 1] = float("nan")
        second.weight[0, 2] = float("inf")
    programs = [torch.export.export(each, (torch.ones(2, 4),)) for each in (first, second)]
    (found,) = differing_weights(programs[0].state_dict, programs[1].state_dict)
    assert found["absolute"] == pytest.approx(298, rel=1e-6)
    assert found["what"] == "3 of 16 items, 2 of them not finite"
    json.dumps(found, allow_nan=False)


def test_not_a_numbers_are_equal() -> None:
    module = torch.nn.Linear(4, 4)
    with torch.no_grad():
        module.bias.fill_(float("nan"))
    programs = [torch.export.export(module, (torch.ones(2, 4),)) for _ in range(2)]
    assert differing_weights(programs[0].state_dict, programs[1].state_dict) == []


def test_files_that_cannot_be_read(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.pt2"
    bad.write_bytes(b"PK nothing")
    for arguments in ((files[0], str(bad)), (str(bad), files[0]), (files[0], "nowhere")):
        assert app.run(["diff", *arguments]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("fxpress: ")
        assert shown.err.count("\n") == 1

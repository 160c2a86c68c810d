"""Keys that distinguish calls, the templates that are kept, and the report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import export
from torch.onnx._internal.exporter._decomp import create_onnx_friendly_decomposition_table

import fxpress
from fxpress import decompose
from fxpress._graphs.decompose import write
from tests.support.decompose_cases import TABLES, assert_decomposed_as_torch, program_of

pytestmark = pytest.mark.slow("decompositions by torch and by us")


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Any:
        return self.function(*args)


def templates_of(function: Callable[..., Any], *inputs: Tensor) -> int:
    """Return the number of templates that a program needs; its result equals torch's."""
    program = export(Calls(function), inputs, strict=False)
    decompose.forget_templates()
    assert_decomposed_as_torch(program, instantiated=True)
    return decompose.report().traced


SQUARE = torch.ones(4, 4)


@pytest.mark.parametrize(
    ("function", "inputs", "expected"),
    [
        (lambda x: (x + 1, x + 1), (SQUARE,), 1),
        (lambda x: (x + 1, x + 1.0), (SQUARE,), 2),
        (lambda x: (x + 1, x + True), (SQUARE,), 2),
        (lambda x: (x * 0.0, x * -0.0), (SQUARE,), 2),
        (lambda x: (x * float("nan"), x * float("nan")), (SQUARE,), 1),
        (lambda x, y: (x + y, y + x), (SQUARE, SQUARE + 1), 1),
        (lambda x, y: (x + y, x + x), (SQUARE, SQUARE + 1), 2),
        (lambda x, y: (x.sin(), y.sin()), (SQUARE, SQUARE.double()), 2),
        (lambda x, y: (x.sin(), y.sin()), (SQUARE, SQUARE.t()), 2),
        (lambda x, y: (x.sin(), y.sin()), (SQUARE, SQUARE[:2]), 2),
        (lambda x: (x[1:].sin(), x[:3].sin()), (SQUARE,), 4),
        (lambda x, y: (x @ y, x @ y.t()), (SQUARE, SQUARE + 1), 3),
        (lambda x: (x.sum(dim=0), x.sum(dim=(0,)), x.sum(0, keepdim=True)), (SQUARE,), 2),
        (lambda x: (torch.cat([x, x]), torch.cat([x, x, x])), (SQUARE,), 2),
    ],
)
def test_keys(function: Callable[..., Any], inputs: tuple[Tensor, ...], expected: int) -> None:
    assert templates_of(function, *inputs) == expected


def test_names_continue_the_highest_number() -> None:
    class Model(nn.Module):
        def forward(self, add_2: Tensor) -> Tensor:
            return add_2 + 1 + 2 + 3

    made = assert_decomposed_as_torch(export(Model(), (SQUARE,)), instantiated=True)
    names = [node.name for node in made.graph.nodes]
    assert names == ["add_2", "add", "add_1", "add_3", "output"]


def test_arguments_that_share_a_storage() -> None:
    def function(x: Tensor, y: Tensor) -> Any:
        return x.view(16) * x.view(4, 4).view(16), y.view(16) * x.view(16)

    assert_decomposed_as_torch(export(Calls(function), (SQUARE, SQUARE + 1)), instantiated=True)


def test_strides_of_the_new_program_decide() -> None:
    """Attention's decomposition changes strides, and linear becomes another operator for them."""
    program = program_of("attention")
    assert_decomposed_as_torch(program, instantiated=True)
    targets = [str(n.target) for n in program.graph.nodes]
    assert targets.count("aten.linear.default") == 2


def test_the_report_counts() -> None:
    decompose.forget_templates()
    program = program_of("deep")
    decompose.run_decompositions(program)
    report = decompose.report()
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    assert report.reason == ""
    assert report.calls == len(calls)
    assert report.by_operator["aten.layer_norm.default"] == 3
    assert 0 < report.traced < report.instantiated == sum(report.by_operator.values())
    assert "3 of aten.layer_norm.default" in str(report)
    decompose.run_decompositions(program)
    assert decompose.report().traced == 0
    assert decompose.report().kept == report.traced


def test_the_old_name_warns() -> None:
    report = decompose.Report(calls=3, instantiated=2)
    with pytest.warns(DeprecationWarning, match=r"Report\.stamped is deprecated: use instantiated"):
        assert report.stamped == 2


def test_checks_pass() -> None:
    program = program_of("deep")
    with decompose.check_templates():
        decompose.run_decompositions(program)
    assert decompose.report().reason == ""


def test_checks_find_a_wrong_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of("deep")
    decompose.forget_templates()
    monkeypatch.setattr(write.Writer, "source", lambda self, node: None)
    with decompose.check_templates(), pytest.raises(fxpress.InternalError, match="from_node"):
        decompose.run_decompositions(program)
    with decompose.check_templates(), decompose.check_templates(False):
        decompose.run_decompositions(program)


def test_default_dtype_is_part_of_the_key() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.full((4, 4), 2) * x + torch.ones(4)

    program = export(Calls(function), (SQUARE,))
    assert_decomposed_as_torch(program)
    torch.set_default_dtype(torch.float64)
    try:
        assert_decomposed_as_torch(program)
    finally:
        torch.set_default_dtype(torch.float32)


def test_bad_input() -> None:
    with pytest.raises(TypeError, match="program"):
        decompose.run_decompositions(nn.Linear(1, 1))  # type: ignore[arg-type]


def test_a_node_before_its_input_raises_as_in_torch() -> None:
    program = export(Calls(lambda x: x.sin().cos()), (SQUARE,))
    sin, cos = (n for n in program.graph.nodes if n.op == "call_function")
    cos.append(sin)
    with pytest.raises(KeyError):
        program.run_decompositions()
    with pytest.raises(KeyError):
        decompose.run_decompositions(program)


def test_templates_of_operators_of_the_user_are_not_kept() -> None:
    with torch.library._scoped_library("decompose_kept", "DEF") as library:
        library.define("same(Tensor x) -> Tensor", tags=(torch.Tag.flexible_layout,))
        library.impl("same", torch.clone, "CPU")
        shape = [4]
        library._register_fake("same", lambda x: x.new_empty(shape))
        operator = torch.ops.decompose_kept.same.default
        program = export(Calls(lambda x: operator(operator(x))), (torch.ones(4),), strict=False)
        assert_decomposed_as_torch(program, instantiated=True)
        assert decompose.report().traced == 1
        shape[0] = 5
        assert_decomposed_as_torch(program)


@pytest.mark.parametrize(
    ("function", "instantiated"),
    [
        (lambda x: (nn.functional.glu(x), nn.functional.glu(x + 1)), True),
        (lambda x: (nn.functional.mish(x), nn.functional.mish(x + 1)), True),
        (lambda x: (x.quantile(0.5), (x + 1).quantile(0.5)), False),  # it writes to its result
        (lambda x: (x.nanquantile(0.25, dim=0), (x + 1).nanquantile(0.25, dim=0)), False),
    ],
)
def test_decompositions_that_annotate_what_they_make(
    function: Callable[..., Any], instantiated: bool
) -> None:
    """torch notes in meta that functions of its references are not for Dynamo."""
    program = export(Calls(function), (SQUARE,))
    decompose.forget_templates()
    made = assert_decomposed_as_torch(program, instantiated=instantiated)
    annotated = [node.meta["custom"] for node in made.graph.nodes if node.meta.get("custom")]
    assert len({id(annotations) for annotations in annotated}) == len(annotated)


@pytest.mark.parametrize("model", ["attention", "convolutions", "deep"])
def test_tables_whose_functions_annotate(model: str) -> None:
    def table() -> Any:
        return create_onnx_friendly_decomposition_table(set())

    assert_decomposed_as_torch(program_of(model), table, instantiated=True)


def test_annotations_of_the_user_and_of_torch() -> None:
    def function(x: Tensor) -> Any:
        with torch.fx.traceback.annotate({"mine": 1}):
            return nn.functional.glu(x), nn.functional.glu(x + 1), nn.functional.gelu(x)

    assert_decomposed_as_torch(export(Calls(function), (SQUARE,)))


@pytest.mark.parametrize("table", ["default", "empty"])
def test_where_meta_of_nodes_is_preserved(table: str) -> None:
    """Placeholders get annotations and numbers in torch's trace."""
    program = program_of("deep")
    decompose.run_decompositions(program, TABLES[table]())
    with torch.fx.traceback.preserve_node_meta():
        assert_decomposed_as_torch(program, table)
        with torch.fx.traceback.annotate({"mine": 1}):
            assert_decomposed_as_torch(program, table)

"""Exports compared with torch's, for programs with one special feature each."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from tests.support.export_cases import (
    BOTH,
    FORWARDS,
    SLOW,
    Forward,
    Made,
    Nested,
    sizes,
)
from tests.support.programs import (
    assert_exports_as_torch,
)
from tests.support.sampled import turns
from tests.support.versions import needs

pytestmark = pytest.mark.slow("exports by torch and by us")


@pytest.mark.parametrize(("name", "strict"), turns(sorted(FORWARDS), [False, True]))
def test_program(name: str, strict: bool) -> None:
    assert_exports_as_torch(Made(FORWARDS[name]).train(), (torch.rand(3, 4) + 0.1,), strict=strict)


@SLOW
@BOTH
@pytest.mark.parametrize("name", ["one_line_many_operators", "branches", "several_outputs"])
def test_program_in_eval(name: str, strict: bool) -> None:
    model = Made(FORWARDS[name]).eval().requires_grad_(False)
    assert_exports_as_torch(model, (torch.rand(3, 4),), strict=strict)


# ---- dynamic shapes -----------------------------------------------------------------------------


SHAPES: dict[str, Any] = {
    "named": {0: Dim("batch", min=2, max=64)},
    "auto": {0: Dim.AUTO, 1: Dim.AUTO},
    "dynamic": {0: Dim.DYNAMIC},
    "static": {0: Dim.STATIC},
    "derived": {0: 2 * Dim("half", min=2, max=8)},
}


@BOTH
@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_dynamic_shapes(kind: str, strict: bool) -> None:
    shapes = {"args": (SHAPES[kind],)}
    assert_exports_as_torch(Made(sizes), (torch.rand(6, 4),), strict=strict, dynamic_shapes=shapes)


@SLOW
@pytest.mark.parametrize(
    "name", ["of_data", "branches", "one_line_many_operators", "views_and_writes", "fused"]
)
def test_dynamic_programs(name: str) -> None:
    assert_exports_as_torch(
        Made(FORWARDS[name]), (torch.rand(3, 4) + 0.1,), dynamic_shapes={"args": ({0: Dim.AUTO},)}
    )


@needs("shapes_specs")
@BOTH
def test_shapes_specs(strict: bool) -> None:
    from torch.fx.experimental.dynamic_spec import ParamsSpec, ShapeVar, TensorSpec

    spec = ParamsSpec({"x": TensorSpec([ShapeVar("n"), None])})
    assert_exports_as_torch(Nested(), (torch.rand(6, 4),), strict=strict, dynamic_shapes=spec)


@BOTH
def test_deferred_asserts(strict: bool) -> None:
    assert_exports_as_torch(
        Made(sizes),
        (torch.rand(6, 4),),
        strict=strict,
        dynamic_shapes={"args": ({0: Dim("n")},)},
        prefer_deferred_runtime_asserts_over_guards=True,
    )


# ---- modules ------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True)
        self.twice = nn.Linear(5, 5)
        self.again = self.twice

    def forward(self, x: Any, *, scale: float = 2.0) -> Any:
        out, (h, c) = self.lstm(x)
        return self.again(self.twice(out)) * scale, h + c


@BOTH
def test_lstm_and_shared_module(strict: bool) -> None:
    assert_exports_as_torch(Recurrent(), (torch.rand(2, 3, 4),), {"scale": 0.5}, strict=strict)


@BOTH
def test_preserved_signatures(strict: bool) -> None:
    assert_exports_as_torch(
        Nested(),
        (torch.rand(2, 4),),
        strict=strict,
        preserve_module_call_signature=("blocks.0", "blocks.1.0"),
    )


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_inputs(layout: torch.layout) -> None:
    def forward(self: Any, x: Any) -> Any:
        return x.to_dense().sin() + 1, x @ torch.ones(4, 2), x

    x = torch.eye(3, 4).to_sparse(layout=layout)
    assert_exports_as_torch(Made(forward), (x,), runs=False)


@BOTH
def test_hooks(strict: bool) -> None:
    model = Nested()
    model.blocks[0].register_forward_hook(lambda m, a, out: out + 1)
    model.blocks[1].register_forward_pre_hook(lambda m, a: (a[0].sin(),))
    assert_exports_as_torch(model, (torch.rand(2, 4),), strict=strict)


def test_source_that_was_executed() -> None:
    source = "def forward(self, x):\n    y = x.sin()\n    return y + x.cos()\n"
    name = "<made at run time>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    for file in ("<string>", name, "/no/such/file.py"):
        space: dict[str, Any] = {}
        exec(compile(source, file, "exec"), space)
        cls = type("Executed", (nn.Module,), {"forward": space["forward"]})
        assert_exports_as_torch(cls(), (torch.rand(2),))


@SLOW
def test_graph_module() -> None:
    traced = torch.fx.symbolic_trace(Nested())
    assert_exports_as_torch(traced, (torch.rand(2, 4),))
    assert_exports_as_torch(traced, (torch.rand(2, 4),), strict=True)


@SLOW
def test_program_that_was_exported() -> None:
    model = export(Nested(), (torch.rand(2, 4),)).module()
    assert_exports_as_torch(model, (torch.rand(2, 4),))


# ---- custom operators ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library() -> Any:
    with torch.library._scoped_library("fxpress_export", "DEF") as made:
        for schema in (
            "plain(Tensor x, int n=2, *, float? s=None) -> Tensor",
            "several(Tensor x, Tensor[] more) -> (Tensor, Tensor)",
            "writes(Tensor(a!) x) -> ()",
            "fresh(Tensor x) -> Tensor",
            "late(Tensor x) -> Tensor",
            "nothing(Tensor x) -> ()",
            "number(Tensor x) -> int",
            "maybe(Tensor? x, str how) -> Tensor[]",
        ):
            made.define(schema)
        kernels: dict[str, Any] = {
            "plain": lambda x, n=2, s=None: x * n,
            "several": lambda x, more: (x + 1, x + 2),
            "writes": lambda x: x.add_(1) and None,
            "fresh": lambda x: x[x > 0].clone(),
            "late": lambda x: x.clone(),
            "nothing": lambda x: None,
            "number": lambda x: 3,
            "maybe": lambda x, how: [torch.ones(2)],
        }
        for name, kernel in kernels.items():
            made.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(
            "fxpress_export::fresh",
            lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size()),
            lib=made,
        )

        def late(x: Any) -> Any:
            torch.library.get_ctx().new_dynamic_size()  # nobody gets it
            return torch.empty_like(x)

        torch.library.register_fake("fxpress_export::late", late, lib=made)
        torch.library.register_fake(
            "fxpress_export::plain", lambda x, n=2, s=None: torch.empty_like(x), lib=made
        )
        yield torch.ops.fxpress_export


@BOTH
@pytest.mark.parametrize(
    "name", ["plain", "several", "writes", "fresh", "late", "nothing", "number", "maybe"]
)
def test_custom_operators(library: Any, name: str, strict: bool) -> None:
    calls: dict[str, Forward] = {
        "plain": lambda self, x: library.plain(x, 3, s=0.5) + library.plain(x),
        "several": lambda self, x: library.several(x, [x, x.sin()])[1] + 1,
        "writes": lambda self, x: (library.writes(y := x.clone()), y + 1)[1],
        "fresh": lambda self, x: library.fresh(x) + 1,
        "late": lambda self, x: library.late(x) + x.sin(),
        "nothing": lambda self, x: (library.nothing(x), x.sin())[1],
        "number": lambda self, x: x * library.number(x),
        "maybe": lambda self, x: library.maybe(None, "how")[0] + 1,
    }
    assert_exports_as_torch(Made(calls[name]), (torch.rand(2, 2),), strict=strict)


# ---- errors -------------------------------------------------------------------------------------


def unequal_sizes(self: Any, x: Any) -> Any:
    return x.nonzero() + torch.ones(3, 2)


def unknown_size(self: Any, x: Any) -> Any:
    n = x.sum().int().item()
    return torch.zeros(n).view(3, -1).expand(4, n)


def unknown_split(self: Any, x: Any) -> Any:
    n = x.sum().int().item()
    return torch.ones(3, 4).split([n, 4 - n], 1)


def branch_on_data(self: Any, x: Any) -> Any:
    return x.sin() if x.sum() > 0 else x


def wrong_shapes(self: Any, x: Any) -> Any:
    return self.linear(x.t())


@BOTH
@pytest.mark.parametrize(
    "forward", [unequal_sizes, unknown_size, unknown_split, branch_on_data, wrong_shapes]
)
def test_errors(forward: Forward, strict: bool) -> None:
    """The same messages, with the same places in the user's code."""
    assert_exports_as_torch(Made(forward), (torch.ones(3, 4),), strict=strict)

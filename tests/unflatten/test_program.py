"""The caller's program stays as it is; the result can be copied, pickled and traced again."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import export
from torch.export import unflatten as torch_unflatten

from fxpress import UnsupportedError
from fxpress.unflatten import unflatten
from tests.support.unflatten_cases import exported, ours_of, quietly, torchs
from tests.support.unflatten_compare import (
    assert_runs_as_eager,
    assert_same_outputs,
    assert_untouched,
    described,
    snapshot,
)
from tests.support.unflatten_models import Deep, Nest, Repeated, Shared, Special

# ---- the caller's program -----------------------------------------------------------------------


def test_u10_the_program_is_as_it_was() -> None:
    program = exported(Nest(), torch.randn(3, 4), torch.randn(3, 4))
    before = snapshot(program)
    module = unflatten(program)
    assert_untouched(program, before)
    assert "unflattened_module" not in program.graph_module.meta
    assert module.meta is not program.graph_module.meta


class Prints(nn.Module):
    """An operator with a side effect: the decomposed program passes a token through it."""

    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        torch.ops.aten._print("before")
        x = self.child(x) * self.scale
        torch.ops.aten._print("after")
        return x


def test_u1_programs_with_effect_tokens(capfd: pytest.CaptureFixture[str]) -> None:
    """The tokens are gone from ours, and still in the program."""
    model = Prints()
    program = exported(model, torch.randn(2, 4)).run_decompositions({})
    assert any("with_effects" in str(n.target) for n in program.graph.nodes)
    tokens = copy.deepcopy(program)
    before = snapshot(program)
    ours = unflatten(program)
    assert_untouched(program, before)
    other = torch_unflatten(tokens)
    assert [(n.name, n.target) for n in ours.graph.nodes] == [
        (n.name, n.target) for n in other.graph.nodes
    ]
    assert ours.graph_signature == other.graph_signature
    assert list(ours.state_dict()) == list(other.state_dict())
    capfd.readouterr()
    assert_runs_as_eager(ours, model, (torch.randn(2, 4),), calls=1)
    assert capfd.readouterr().out == "before\nafter\n" * 2


def test_u1_effect_tokens_beside_bodies_of_operators(capfd: pytest.CaptureFixture[str]) -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch.ops.aten._print("before")
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    x = torch.randn(2, 4)
    program = exported(Branches(), x).run_decompositions({})
    before = snapshot(program)
    ours = unflatten(program)
    assert_untouched(program, before)
    other = torch_unflatten(copy.deepcopy(program))
    assert [(n.name, n.target) for n in ours.graph.nodes] == [
        (n.name, n.target) for n in other.graph.nodes
    ]
    capfd.readouterr()
    assert_runs_as_eager(ours, Branches(), (x,), calls=1)
    assert capfd.readouterr().out == "before\n" * 2


def test_u11_the_program_can_be_copied_afterwards() -> None:
    model = Nest()
    args = (torch.randn(3, 4), torch.randn(3, 4))
    program = exported(model, *args)
    unflatten(program)
    again = copy.deepcopy(program)
    torch.testing.assert_close(again.module()(*args), model(*args))


def test_u11_the_result_can_be_copied() -> None:
    model = Nest()
    args = (torch.randn(3, 4), torch.randn(3, 4))
    program = exported(model, *args)
    module = unflatten(program)
    module(*args)  # with plans made
    again = copy.deepcopy(module)
    assert type(again) is type(module)
    assert [n for n, _ in again.named_modules()] == [n for n, _ in module.named_modules()]
    for mine, other in zip(again.modules(), module.modules(), strict=True):
        assert mine is not other
        if not hasattr(other, "graph"):
            continue
        assert mine.graph is not other.graph
        for a, b in zip(mine.graph.nodes, other.graph.nodes, strict=True):
            assert (a.name, a.op, a.target) == (b.name, b.op, b.target)
            assert described(a.meta.get("val")) == described(b.meta.get("val"))
            if isinstance(b.meta.get("val"), Tensor):
                assert a.meta["val"] is b.meta["val"], "fake values are shared"
    for (name, a), (_, b) in zip(again.named_parameters(), module.named_parameters(), strict=True):
        assert a is not b
        assert a.data_ptr() != b.data_ptr(), name
    assert_runs_as_eager(again, model, args, gradients=True)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    assert_runs_as_eager(module, model, args)
    assert [n.graph is again.graph for n in again.input_placeholders] == [True, True]


# ---- pickles ------------------------------------------------------------------------------------


def nest_args() -> tuple[Tensor, ...]:
    return torch.randn(3, 4), torch.randn(3, 4)


@pytest.mark.parametrize("used", [False, True], ids=["unused", "used"])
def test_u11_the_result_can_be_pickled(used: bool) -> None:
    model, args = Nest(), nest_args()
    module = ours_of(model, *args, preserve_module_call_signature=("first",))
    if used:
        module(*args)
        assert module.graph_module.code
    again = pickle.loads(pickle.dumps(module))
    assert type(again) is type(module)
    for mine, other in zip(again.modules(), module.modules(), strict=True):
        if not hasattr(other, "graph"):
            continue
        for a, b in zip(mine.graph.nodes, other.graph.nodes, strict=True):
            assert (a.name, a.op, a.target) == (b.name, b.op, b.target)
            assert [n.name for n in a.all_input_nodes] == [n.name for n in b.all_input_nodes]
            assert described(a.meta.get("val")) == described(b.meta.get("val"))
    assert_runs_as_eager(again, model, args, gradients=True)
    assert again.graph_module.code == module.graph_module.code


@pytest.mark.parametrize("build", [Deep, Special, Shared], ids=lambda b: b.__name__)
def test_u11_pickles_of_repeated_and_shared_modules(build: type[nn.Module]) -> None:
    model, x = build(), torch.randn(3, 4)
    for preserved in ((), tuple(n for n, _ in model.named_children())):
        module = ours_of(model, x, preserve_module_call_signature=preserved)
        for again in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
            names = [
                [(n, id(m)) for n, m in each.named_modules(remove_duplicate=False)]
                for each in (again, module)
            ]
            assert [n for n, _ in names[0]] == [n for n, _ in names[1]]
            parameters = [
                [n for n, _ in each.named_parameters(remove_duplicate=True)]
                for each in (again, module)
            ]
            assert parameters[0] == parameters[1]
            assert_runs_as_eager(again, model, (x,), gradients=True)


def test_u11_pickle_with_dynamic_shapes() -> None:
    model, args = Nest(), nest_args()
    batch = torch.export.Dim("batch", min=2, max=64)
    program = exported(model, *args, dynamic_shapes=({0: batch}, {0: batch}))
    again = pickle.loads(pickle.dumps(quietly(program)))
    assert_runs_as_eager(again, model, (torch.randn(7, 4), torch.randn(7, 4)))
    with pytest.raises(RuntimeError, match="Expected input"):
        again(torch.randn(100, 4), torch.randn(100, 4))


@pytest.mark.slow("imports torch in a separate process")
def test_u11_pickle_in_another_process(tmp_path: Path) -> None:
    model, args = Nest(), nest_args()
    module = ours_of(model, *args)
    torch.save((module, args, model(*args)), tmp_path / "module.pt")
    script = (
        "import sys, torch\n"
        "m, args, expected = torch.load(sys.argv[1], weights_only=False)\n"
        "torch.testing.assert_close(m(*args), expected)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path / "module.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_copied_program_and_a_copied_result_are_independent() -> None:
    model, args = Nest(), nest_args()
    program = exported(model, *args)
    module = unflatten(program)
    del program
    again = copy.deepcopy(module)
    del module
    assert_runs_as_eager(again, model, args)
    assert_same_outputs(copy.deepcopy(again)(*args), again(*args), exact=True)


# ---- U-4: traced again ---------------------------------------------------------------------------


class Traced(nn.Module):
    """Buffers, repetition, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Repeated(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x: Tensor, y: Tensor | None = None) -> dict[str, Tensor]:
        z = self.block(x) * self.scale
        return {"z": z, "sum": z.sum(-1) if y is None else z.sum(-1) + y.sum(-1)}


@pytest.fixture
def traced() -> tuple[nn.Module, Any, Tensor]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = Traced(), torch.randn(3, 4)
    return model, ours_of(model, x), x


@pytest.mark.parametrize("fullgraph", [True, False])
def test_u4_compile(traced: tuple[nn.Module, Any, Tensor], fullgraph: bool) -> None:
    model, module, x = traced
    compiled = torch.compile(module, backend="eager", fullgraph=fullgraph)
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x)["sum"].sum().backward()
    assert module.block.inner.get_submodule("0").weight.grad is not None


@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
def test_u4_export_again(traced: tuple[nn.Module, Any, Tensor], strict: bool) -> None:
    model, module, x = traced
    program = export(module, (x,), strict=strict)
    torch.testing.assert_close(program.module()(x), model(x))
    twice = quietly(program)
    torch.testing.assert_close(twice(x), model(x))
    assert set(dict(twice.named_parameters())) == set(dict(model.named_parameters()))


def test_u4_symbolic_trace(traced: tuple[nn.Module, Any, Tensor]) -> None:
    model, module, x = traced
    graph = torch.fx.symbolic_trace(module)
    torch.testing.assert_close(torch.utils._pytree.tree_leaves(graph(x)), list(model(x).values()))


def test_symbolic_trace_with_inputs_in_other_containers() -> None:
    """A tracer's proxies do not give the contents of such a container."""

    class Takes(nn.Module):
        def forward(self, inputs: dict[str, Tensor]) -> Tensor:
            return inputs["a"] + 1

    example = OrderedDict(a=torch.ones(2))
    module = ours_of(Takes(), example)
    assert torch.equal(module(example), torch.full((2,), 2.0))
    with pytest.raises(UnsupportedError, match="OrderedDict"):
        torch.fx.symbolic_trace(module)


def test_inputs_in_the_programs_structure() -> None:
    """No adapter is called for them."""
    model, x = Traced(), torch.randn(3, 4)
    program = export(model, (x,), strict=False)
    flat, spec = torch.utils._pytree.tree_flatten(((x,), {}))
    for module in (quietly(program), torchs(program)):
        assert module._adapt_flat_args(flat, spec, (x,)) is flat
        with pytest.raises(TypeError, match="no flat args adapter"):
            other = torch.utils._pytree.tree_structure(((x, x), {}))
            module._adapt_flat_args([x, x], other, (x, x))

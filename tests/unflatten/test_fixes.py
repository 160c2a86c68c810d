"""Where torch's unflatten is wrong and ours is right on purpose: one test for each row."""

from __future__ import annotations

import copy
import importlib
import logging
import operator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export import unflatten as torch_unflatten
from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument
from torch.fx import Graph

import fxpress.unflatten
from fxpress._torch.fx import is_opaque_value
from fxpress.unflatten import FlatArgsAdapter, InterpreterModule, unflatten
from tests.support.opaque import handle_of_a_custom_class
from tests.support.unflatten_cases import both, exported, ours_of, quietly, torchs
from tests.support.unflatten_compare import (
    assert_runs_as_eager,
)
from tests.support.unflatten_models import Leaf, Nest, Repeated, WithOutputs

theirs = importlib.import_module("torch.export.unflatten")


def decomposed(model: nn.Module, *args: Tensor, **options: Any) -> ExportedProgram:
    return exported(model, *args, **options).run_decompositions({})


# ---- mutations ----------------------------------------------------------------------------------


class TwoBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(2))
        self.register_buffer("b", torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        self.a.copy_(x + 1)
        self.b.copy_(x + 1)
        return x * 2


def test_u18_two_buffers_written_from_one_node() -> None:
    """As after common subexpression elimination."""
    model, x = TwoBuffers(), torch.tensor([3.0, 5.0])
    program = decomposed(model, x)
    output = program.graph.output_node()
    first, second, user = output.args[0]
    output.args = ((first, first, user),)
    program.graph.erase_node(second)
    specs = program.graph_signature.output_specs
    assert [s.kind for s in specs][:2] == [OutputKind.BUFFER_MUTATION] * 2
    specs[1] = OutputSpec(specs[1].kind, TensorArgument(first.name), specs[1].target)
    program.graph_module.recompile()
    ours = quietly(program)
    assert_runs_as_eager(ours, model, (x,))
    torch.testing.assert_close(ours.a, x + 1)
    torch.testing.assert_close(ours.b, x + 1)


class WritesParameter(nn.Module):
    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                self.weight.add_(x)
            return self.weight * x

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child()

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x) + 1


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
def test_u21_mutated_parameter(strict: bool, grad: bool) -> None:
    model, x = WritesParameter(), torch.tensor([3.0, 5.0])
    program = decomposed(model, x, strict=strict)
    kinds = [s.kind for s in program.graph_signature.output_specs]
    assert OutputKind.PARAMETER_MUTATION in kinds
    ours = quietly(program)
    with torch.set_grad_enabled(grad):
        for _ in range(2):
            torch.testing.assert_close(ours(x).detach(), model(x).detach())
            torch.testing.assert_close(ours.child.weight, model.child.weight)
    assert isinstance(ours.child.weight, nn.Parameter)


class CopiesInput(nn.Module):
    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(2))

        def forward(self, x: Tensor, z: Tensor) -> Tensor:
            self.last.copy_(x)
            return self.last * z

    def __init__(self, *, nested: bool) -> None:
        super().__init__()
        self.nested = nested
        if nested:
            self.child = self.Child()
        else:
            self.register_buffer("last", torch.zeros(2))

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        if self.nested:
            return self.child(x, z).sin()
        self.last.copy_(x)
        return self.last * z


@pytest.mark.parametrize("nested", [False, True])
def test_u22_a_buffer_takes_an_input_as_it_is(nested: bool) -> None:
    model = CopiesInput(nested=nested)
    args = (torch.tensor([3.0, 5.0]), torch.tensor([2.0, 7.0]))
    program = decomposed(model, *args)
    mutations = program.graph_signature.buffers_to_mutate
    assert set(mutations) <= {n.name for n in program.graph.find_nodes(op="placeholder")}
    ours = quietly(program)
    assert_runs_as_eager(ours, model, args)
    torch.testing.assert_close(ours.get_buffer("child.last" if nested else "last"), args[0])


class SwapsBuffers(nn.Module):
    """Each buffer takes what the other was: after decomposition, placeholders are the values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.tensor([1.0, 2.0]))
        self.register_buffer("b", torch.tensor([3.0, 4.0]))

    def forward(self, x: Tensor) -> Tensor:
        old = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(old)
        return x + self.a


def test_u22_buffers_that_swap() -> None:
    model, x = SwapsBuffers(), torch.tensor([3.0, 5.0])
    ours = quietly(decomposed(model, x))
    assert_runs_as_eager(ours, model, (x,), calls=3)


class WritesInput(nn.Module):
    def forward(self, input: Tensor, other: Tensor) -> Tensor:
        input.add_(other)
        return input * 2


def test_mutated_argument_called_input() -> None:
    """torch's copy of the graph renames what is called like a builtin: KeyError."""
    args = (torch.ones(2), torch.tensor([3.0, 5.0]))
    program = decomposed(WritesInput(), *args)
    assert list(program.graph_signature.user_inputs_to_mutate.values()) == ["input"]
    assert_runs_as_eager(quietly(program), WritesInput(), args)


# ---- stacks -------------------------------------------------------------------------------------


class Borrowed(nn.Module):
    """`layer1` calls `layer10`, which is not below it: only as text is its path a prefix."""

    class Layer(nn.Module):
        def __init__(self, other: nn.Module) -> None:
            super().__init__()
            self.hidden = [other]

        def forward(self, x: Tensor) -> Tensor:
            return self.hidden[0](x) + 1

    def __init__(self) -> None:
        super().__init__()
        self.layer10 = nn.Linear(4, 4)
        self.layer1 = self.Layer(self.layer10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer1(x).cos()


def test_u25_prefixes_are_of_whole_names(caplog: pytest.LogCaptureFixture) -> None:
    model, x = Borrowed(), torch.randn(2, 4)
    program = exported(model, x)
    with caplog.at_level(logging.WARNING):
        ours = quietly(program)
    assert "do not form a stack" in caplog.text
    assert "layer10" in caplog.text
    assert_runs_as_eager(ours, model, (x,))
    assert [str(n.target) for n in ours.graph.find_nodes(op="call_module")] == ["layer1"]


def test_u27_empty_stack_names_the_node() -> None:
    """Deserialization writes nodes without a stack; torch: not enough values to unpack."""
    program = exported(Nest(), torch.randn(3, 4), torch.randn(3, 4))
    node = next(n for n in program.graph.nodes if n.target is torch.ops.aten.layer_norm.default)
    node.meta["nn_module_stack"] = {}
    with pytest.raises(RuntimeError, match=rf"nn_module_stack.*{node.name}"):
        quietly(program)


class Interleaved(nn.Module):
    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([0.5, 2.0]))

        def forward(self, x: Tensor) -> Tensor:
            return (x.sin() * self.weight).cos() + self.weight

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child()

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x).exp()


def interleave(program: ExportedProgram, *after: Any) -> None:
    """Put a node of the root's after each of these operations, as a pass may do."""
    root = dict(list(program.graph.output_node().args[0][0].meta["nn_module_stack"].items())[:1])
    for target in after:
        node = next(n for n in program.graph.nodes if n.target is target)
        with program.graph.inserting_after(node):
            new = program.graph.call_function(torch.ops.aten.neg.default, (node,))
        new.meta = {**node.meta, "nn_module_stack": root}
        node.replace_all_uses_with(new, lambda user, new=new: user is not new)
    program.graph_module.recompile()


@pytest.mark.parametrize(
    "after",
    [
        (torch.ops.aten.sin.default,),
        (torch.ops.aten.sin.default, torch.ops.aten.cos.default),
        (torch.ops.aten.mul.Tensor,),
        (torch.ops.aten.sin.default, torch.ops.aten.mul.Tensor, torch.ops.aten.cos.default),
    ],
)
@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
def test_u35_foreign_node_inside_a_call(after: tuple[Any, ...], strict: bool) -> None:
    x = torch.tensor([0.3, 0.7])
    program = exported(Interleaved(), x, strict=strict)
    interleave(program, *after)
    expected = program.module()(x)
    ours = quietly(program)
    torch.testing.assert_close(ours(x), expected, rtol=0, atol=0)
    calls = [str(n.target) for n in ours.graph.find_nodes(op="call_module")]
    assert len(calls) == len(after) + 1
    graphs = {id(ours.get_submodule(target).graph) for target in calls}
    assert len(graphs) == len(calls), "each call has a graph of its own"
    assert list(dict(ours.named_parameters())) == ["child.weight"]
    parts = [ours.get_submodule(target) for target in calls]
    assert {id(m.weight) for m in parts if hasattr(m, "weight")} == {id(ours.child.weight)}
    ours(x).sum().backward()
    assert ours.child.weight.grad is not None


def test_u35_inside_a_nested_call() -> None:
    model = nn.Sequential(nn.Sequential(Interleaved(), nn.Tanh()), nn.Sigmoid())
    x = torch.tensor([0.3, 0.7])
    program = exported(model, x)
    interleave(program, torch.ops.aten.sin.default, torch.ops.aten.cos.default)
    expected = program.module()(x)
    torch.testing.assert_close(quietly(program)(x), expected, rtol=0, atol=0)


def test_u35_in_one_of_several_calls() -> None:
    model, x = Repeated(Interleaved.Child(), between=False), torch.tensor([0.3, 0.7])
    program = exported(model, x)
    interleave(program, torch.ops.aten.cos.default)
    expected = program.module()(x)
    torch.testing.assert_close(quietly(program)(x), expected, rtol=0, atol=0)


class Forwards(nn.Module):
    """Its own graph is one call, whatever its flag; what it calls depends on the flag."""

    class Inner(nn.Module):
        def forward(self, x: Tensor, flag: bool) -> Tensor:
            return x + 1 if flag else x.sin()

    def __init__(self) -> None:
        super().__init__()
        self.inner = self.Inner()

    def forward(self, x: Tensor, flag: bool) -> Tensor:
        return self.inner(x, flag)


class Flags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.outer = Forwards()

    def forward(self, x: Tensor) -> Tensor:
        x = self.outer(x, True)
        x = self.outer(x, False)
        return self.outer(x, True)


@pytest.mark.parametrize("preserved", [(), ("outer",), ("outer.inner",)], ids=str)
@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
def test_u87_calls_are_merged_only_if_what_they_call_is_equal(
    strict: bool, preserved: tuple[str, ...]
) -> None:
    """torch's comparison ignores what is called, and gives the numbers of another call."""
    model, x = Flags(), torch.tensor([0.3, 0.7])
    program = exported(model, x, strict=strict, preserve_module_call_signature=preserved)
    ours = quietly(program)
    assert_runs_as_eager(ours, model, (x,))
    if not preserved:
        calls = [str(n.target) for n in ours.graph.find_nodes(op="call_module")]
        assert calls == ["outer", "outer@1", "outer"]
        assert not torch.equal(torchs(program)(x), model(x))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        x = self.block[0](x).sin()  # a child of `block` before `block` itself
        return self.block(x)


def test_u41_a_module_on_the_way_keeps_its_own_class_name() -> None:
    model, x = Outer(), torch.randn(2, 4)
    result = both(model, x)
    assert result.ours.block.type_name() == "torch.nn.modules.container.Sequential"
    assert result.theirs.block.type_name() == "torch.nn.modules.linear.Linear"
    assert_runs_as_eager(result.ours, model, (x,))


# ---- preserved signatures -----------------------------------------------------------------------


def test_u56_constant_outputs_of_preserved_modules() -> None:
    model, x = WithOutputs(), torch.randn(2, 4)
    ours = ours_of(copy.deepcopy(model), x, preserve_module_call_signature=("inner",))
    got, wanted = ours.inner(x), model.inner(x)
    assert (got["number"], got["none"], got["nested"][1][1]) == (3, None, 0.5)
    torch.testing.assert_close(got["nested"][0], wanted["nested"][0])
    torch.testing.assert_close(got["sum"], wanted["sum"])
    assert_runs_as_eager(ours, model, (x,))
    ours.inner = model.inner
    assert_runs_as_eager(ours, model, (x,))


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2))
        self.register_buffer("scratch", torch.ones(2), persistent=False)
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x * self.weight + self.count + self.scratch


def test_u63_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """Intermediate values of a mutated buffer are read across calls: torch prints."""
    program = exported(
        Repeated(Counts()), torch.randn(2), preserve_module_call_signature=("inner",)
    )
    capfd.readouterr()
    module = unflatten(program)
    module(torch.randn(2))
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    torch_unflatten(program)
    assert "Checking mutability" in capfd.readouterr().out


def test_u95_buffers_of_repeated_preserved_calls_are_buffers() -> None:
    model, x = Repeated(Counts()), torch.randn(2)
    ours = ours_of(copy.deepcopy(model), x, preserve_module_call_signature=("inner",))
    assert isinstance(ours.inner, fxpress.unflatten.InterpreterModuleDispatcher)
    assert sorted(ours.state_dict()) == sorted(model.state_dict())
    assert sorted(n for n, _ in ours.named_buffers()) == ["inner.count", "inner.scratch"]
    assert [n for n, _ in ours.named_parameters()] == ["inner.weight"]
    calls = ours.inner.call_modules()
    assert all(call.count is ours.inner.count for call in calls)
    assert_runs_as_eager(ours, model, (x,), calls=3, gradients=True)
    ours.load_state_dict(model.state_dict())
    ours.double()
    assert all(call.count is ours.inner.count for call in ours.inner.call_modules())
    assert ours.inner.call_modules()[1].weight is ours.inner.weight
    assert ours.inner.weight.dtype == torch.float64


def test_u95_state_that_the_graph_does_not_use_is_kept() -> None:
    inner = Counts()
    inner.spare = torch.nn.Parameter(torch.randn(3))
    model, x = Repeated(inner), torch.randn(2)
    ours = ours_of(copy.deepcopy(model), x, strict=True, preserve_module_call_signature=("inner",))
    assert isinstance(ours.inner, fxpress.unflatten.InterpreterModuleDispatcher)
    assert "inner.spare" in ours.state_dict()
    assert [*ours.load_state_dict(model.state_dict())] == [[], []]
    assert torch.equal(ours.inner.spare, inner.spare)
    assert_runs_as_eager(ours, model, (x,), calls=3)


# ---- running ------------------------------------------------------------------------------------


class DropLast(FlatArgsAdapter):
    def adapt(
        self,
        target_spec: Any,
        input_spec: Any,
        input_args: list[Any],
        metadata: dict[str, Any] | None = None,
        obj: Any | None = None,
    ) -> list[Any]:
        return input_args[: target_spec.num_leaves]


def test_u104_adapting_prints_nothing(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model, args = Nest(), (torch.randn(3, 4), torch.randn(3, 4))
    module = quietly(exported(model, *args), DropLast())
    capfd.readouterr()
    with caplog.at_level(logging.DEBUG):
        result = module(*args, torch.randn(1))
    torch.testing.assert_close(result, model(*args))
    assert capfd.readouterr().out == ""


class AliasedConstants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.ones(4)
        self.child = nn.Module()
        self.child.b = self.a
        self.register_buffer("n", torch.ones(4), persistent=False)
        self.register_buffer("m", self.n, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.a + self.child.b * self.n - self.m


@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
def test_u72_aliased_constants_stay_aliased(strict: bool) -> None:
    model, x = AliasedConstants(), torch.randn(4)
    program = exported(model, x, strict=strict)
    ours = quietly(program)
    names = [n for n in ("a", "child.b", "n", "m") if n in program.constants]
    assert len(names) >= 3
    values = {name: operator.attrgetter(name)(ours) for name in names}
    for left in names:
        for right in names:
            same = program.constants[left] is program.constants[right]
            assert (values[left] is values[right]) == same, (left, right)
        assert values[left] is not program.constants[left]
    assert ours.state_dict() == {}
    assert_runs_as_eager(ours, model, (x,))


def test_u84_opaque_values_can_be_sunk(caplog: pytest.LogCaptureFixture) -> None:
    """Constants may be opaque values: assigning them works, so does reading them."""
    handle = handle_of_a_custom_class()
    assert is_opaque_value(handle)
    assert not is_opaque_value(3)
    assert "deprecated" not in caplog.text
    for module in (theirs, fxpress.unflatten):
        graph = Graph()
        x = graph.placeholder("x")
        h = graph.placeholder("c_handle")
        graph.output(graph.call_function(operator.is_, (h, x)))
        holder = module.InterpreterModule(graph)
        module._assign_attr(handle, holder, "handle", module._AttrKind.CONSTANT)
        if module is theirs:
            with pytest.raises(AssertionError, match="expected state_attr"):
                module._sink_params(holder, {"c_handle": ["handle"]}, [])
            continue
        removed = module._sink_params(holder, {"c_handle": ["handle"]}, [])
        assert removed == {id(holder): {"c_handle"}}
        assert [n.op for n in graph.nodes] == ["placeholder", "get_attr", "call_function", "output"]
        assert holder(handle) is True


def test_u102_a_module_that_was_not_finalized() -> None:
    graph = Graph()
    graph.output(graph.placeholder("x"))
    module = InterpreterModule(graph)
    with pytest.raises(AssertionError, match="finalize"):
        module(torch.ones(1))
    module.finalize()
    torch.testing.assert_close(module(torch.ones(1)), torch.ones(1))


def test_leaf_runs_alone_by_its_preserved_signature() -> None:
    """A submodule with a preserved signature can be called alone (U-53, U-54)."""
    ours = ours_of(
        Nest(),
        torch.randn(3, 4),
        torch.randn(3, 4),
        preserve_module_call_signature=("first.leaf",),
    )
    leaf, x = Leaf(), torch.randn(3, 4)
    torch.testing.assert_close(ours.first.leaf(x, scale=x), leaf(x, scale=x))


# ---- stacks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", [None, {}])
def test_u33_nodes_that_one_module_uses(stack: Any) -> None:
    """They belong to it, as all that feeds them alone."""
    inputs = torch.randn(3, 4), torch.randn(3, 4)
    model = Nest()
    program = exported(model, *inputs)

    def graphs() -> dict[str, str]:
        return {name: str(child.graph) for name, child in unflatten(program).named_modules()}

    expected = graphs()
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    changed = 0
    for node in calls:
        users = [user.meta.get("nn_module_stack") for user in node.users]
        if any(user != node.meta["nn_module_stack"] for user in users):
            continue
        kept = node.meta.pop("nn_module_stack")
        if stack is not None:
            node.meta["nn_module_stack"] = stack
        with pytest.raises((RuntimeError, ValueError)):
            torch_unflatten(program)
        assert graphs() == expected
        node.meta["nn_module_stack"] = kept
        changed += 1
    assert changed > 2
    for node in calls:
        users = [user.meta.get("nn_module_stack") for user in node.users]
        if users == [node.meta["nn_module_stack"]] * len(users):
            del node.meta["nn_module_stack"]
    assert graphs() == expected
    torch.testing.assert_close(unflatten(program)(*inputs), model(*inputs))

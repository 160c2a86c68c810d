"""The situations of torch's users, as they reported them, against the eager module."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from fxpress.unflatten import InterpreterModule
from tests.support.unflatten_cases import exported, ours_of, quietly
from tests.support.unflatten_compare import assert_runs_as_eager
from tests.support.unflatten_models import Counter, Repeated, Sized

STRICT = pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# ---- pytorch#160937, #184361: the nodes of one call in two groups -------------------------------


class Rotary(nn.Module):
    """A Llama's rotary embedding in small: a region without gradients inside the call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.tensor([1.0, 0.1]), persistent=False)

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            angles = torch.outer(positions.float(), self.frequencies)
            angles = torch.cat([angles, angles], -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        q = self.project(x)
        q = q * cos + torch.cat([-q[..., 2:], q[..., :2]], -1) * sin
        return x + (q @ q.transpose(-1, -2)).masked_fill(~mask, -1e9).softmax(-1) @ x


class SmallLlama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 4)
        self.rotary_emb = Rotary()
        self.layers = nn.ModuleList(Attends() for _ in range(2))
        self.head = nn.Linear(4, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        positions = torch.arange(tokens.shape[1])
        cos, sin = self.rotary_emb(x, positions)
        mask = torch.ones(tokens.shape[1], tokens.shape[1]).tril().bool()
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.head(x)


def tokens() -> Tensor:
    return torch.randint(0, 16, (2, 8), generator=torch.Generator().manual_seed(0))


def split_rotary(program: Any) -> None:
    """Move the mask's nodes of the model between the rotary embedding's, as the report has it."""
    nodes = [n for n in program.graph.nodes if n.op == "call_function"]
    inside = [n for n in nodes if "rotary_emb" in str(n.meta.get("nn_module_stack"))]
    first_layer = next(n for n in nodes if "layers.0" in str(n.meta.get("nn_module_stack")))
    between = nodes[nodes.index(inside[-1]) + 1 : nodes.index(first_layer)]
    assert between
    assert len(inside) > 2
    anchor = next(n for n in inside if n.target is torch.ops.aten.cos.default)
    for node in between:
        anchor.prepend(node)
    program.graph.lint()
    program.graph_module.recompile()


@STRICT
@pytest.mark.parametrize("moved", [False, True])
def test_184361_rotary_embedding_in_two_groups(strict: bool, moved: bool) -> None:
    model = SmallLlama()
    program = exported(copy.deepcopy(model), tokens(), strict=strict)
    if moved:
        split_rotary(program)
    ours = quietly(program)
    assert_runs_as_eager(ours, model, (tokens(),), gradients=True)


@pytest.mark.parametrize(("masked", "strict"), [(False, True), (True, False)])
def test_162898_pipeline_of_a_llama(masked: bool, strict: bool) -> None:
    """torch.distributed.pipelining builds its own tree with `_ModuleFrame`."""
    transformers = pytest.importorskip("transformers")
    from torch.distributed.pipelining import SplitPoint, pipeline
    from torch.distributed.pipelining._IR import Pipe

    import fxpress

    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=64,
        use_cache=False,
    )
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    kwargs: dict[str, Any] = {"input_ids": torch.randint(0, 64, (1, 16))}
    if masked:
        kwargs["attention_mask"] = torch.ones((1, 16), dtype=torch.bool)
    expected = model(**kwargs).logits

    def trace(mod: nn.Module, args: Any, named: Any = None) -> Any:
        return export(mod, args, named, strict=strict)

    with mock.patch.object(Pipe, "_trace_with_export", trace), fxpress.installed():
        pipe = pipeline(
            model, mb_args=(), mb_kwargs=kwargs, split_spec={"model.layers.2": SplitPoint.BEGINNING}
        )
    assert pipe.num_stages == 2
    (logits,) = torch.utils._pytree.tree_leaves(pipe(**kwargs))
    torch.testing.assert_close(logits, expected)


# ---- pytorch#127643 -----------------------------------------------------------------------------


@STRICT
def test_127643_buffer_of_the_root_as_an_argument(strict: bool) -> None:
    class Layer(nn.Module):
        def forward(self, x: Tensor, const: Tensor) -> Tensor:
            return x + const

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("const", torch.ones(6, 8))
            self.layers = nn.ModuleList([Layer() for _ in range(2)])

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x, self.const)
            return x

    model, x = Model(), torch.randn(6, 8)
    ours = ours_of(model, x, strict=strict)
    assert_runs_as_eager(ours, model, (x,))
    assert list(ours.state_dict()) == ["const"]


# ---- pytorch#171964 -----------------------------------------------------------------------------


class Adapter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.adapter = nn.Linear(2, 2)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.adapter(x))


@STRICT
@pytest.mark.parametrize("named", [False, True], ids=["by position", "by name"])
def test_171964_export_again_with_dynamic_shapes(named: bool, strict: bool) -> None:
    model = nn.Sequential(Adapter()).eval() if not named else Adapter().eval()
    dynamic = {0: Dim.DYNAMIC(min=1, max=1024)}
    name = "x" if named else "input"
    shapes: Any = {name: dynamic} if named else (dynamic,)
    x = torch.rand(2, 2)
    program = export(model, args=(x,), dynamic_shapes=shapes)
    module = quietly(program)
    again = export(module, args=(x,), dynamic_shapes=shapes, strict=strict)
    for rows in (1, 2, 7):
        x = torch.rand(rows, 2)
        torch.testing.assert_close(again.module()(x), model(x))
    assert_runs_as_eager(quietly(again), model, (torch.rand(5, 2),))


@STRICT
def test_171964_with_keyword_arguments(strict: bool) -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor, *, scale: Tensor) -> Tensor:
            return x * scale

    shapes = {"x": {0: Dim.DYNAMIC}, "scale": {0: Dim.DYNAMIC}}
    x, scale = torch.rand(4, 2), torch.rand(4, 2)
    program = export(Model(), (x,), {"scale": scale}, dynamic_shapes=shapes)
    module = quietly(program)
    again = export(module, (x,), {"scale": scale}, dynamic_shapes=shapes, strict=strict)
    assert_runs_as_eager(again.module(), Model(), (torch.rand(7, 2),), {"scale": torch.rand(7, 2)})


# ---- pytorch#132930 -----------------------------------------------------------------------------


@STRICT
@pytest.mark.parametrize("preserved", [(), ("foo", "bar")], ids=["plain", "preserved"])
def test_132930_sizes_shared_by_two_children(preserved: tuple[str, ...], strict: bool) -> None:
    model, x = Sized(), torch.randn(3, 4)
    program = export(
        model,
        (x,),
        dynamic_shapes={"x": {0: Dim("rows", min=2)}},
        strict=strict,
        preserve_module_call_signature=preserved,
    )
    ours = quietly(program)
    for rows in (3, 5):
        x = torch.randn(rows, 4)
        assert_runs_as_eager(ours, model, (x,))
        if preserved:
            assert_runs_as_eager(ours.foo, model.foo, (x,))


def test_132930_children_with_static_sizes_run_alone() -> None:
    model, x = Sized(), torch.randn(3, 4)
    ours = ours_of(model, x)
    assert_runs_as_eager(ours, model, (x,))
    assert_runs_as_eager(ours.foo, model.foo, (x,))
    assert_runs_as_eager(ours.bar, model.bar, (x,))


# ---- pytorch#132993 -----------------------------------------------------------------------------


@STRICT
@pytest.mark.parametrize("between", [False, True])
def test_132993_adjacent_calls_are_calls(between: bool, strict: bool) -> None:
    model, x = Repeated(nn.Linear(4, 4), between=between), torch.randn(2, 4)
    ours = ours_of(copy.deepcopy(model), x, strict=strict)
    assert_runs_as_eager(ours, model, (x,), gradients=True)
    assert len(ours.graph.find_nodes(op="call_module")) == 3
    torch.testing.assert_close(ours.inner(x), model.inner(x))


def test_132993_one_layer_over_several_inputs() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return torch.cat([self.linear(v) for v in (x, y)])

    model, args = Model(), (torch.randn(2, 4), torch.randn(2, 4))
    ours = ours_of(copy.deepcopy(model), *args)
    assert_runs_as_eager(ours, model, args, gradients=True)
    torch.testing.assert_close(ours.linear(args[1]), model.linear(args[1]))


# ---- PR #137999 and what followed ---------------------------------------------------------------


class Accumulates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))
        self.inner = Counter()

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(self.inner(x))
        return x + self.total.sum()


@pytest.mark.parametrize(("decompose", "strict"), [(False, True), (True, False)])
@pytest.mark.parametrize(
    "preserved", [("inner",), ("inner.inner",), ("inner", "inner.inner")], ids="+".join
)
def test_137999_mutated_buffers_in_repeated_preserved_calls(
    preserved: tuple[str, ...], decompose: bool, strict: bool
) -> None:
    model, x = Repeated(Accumulates()), torch.tensor([0.5, 1.5])
    program = exported(
        copy.deepcopy(model), x, strict=strict, preserve_module_call_signature=preserved
    )
    if decompose:
        program = program.run_decompositions({})
    ours = quietly(program)
    assert_runs_as_eager(ours, model, (x,), calls=3)
    fresh = Repeated(Accumulates())
    fresh.load_state_dict(model.state_dict())
    for name in preserved[:1]:
        parent, _, last = name.rpartition(".")
        setattr(ours.get_submodule(parent), last, copy.deepcopy(fresh.get_submodule(name)))
    assert_runs_as_eager(ours, fresh, (x,), calls=1)


def test_175914_mutation_with_list_arguments() -> None:
    """An intermediate value of a mutation that torch.stack has made."""

    class Calibrates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("iterations", torch.zeros(()))

        def forward(self, x: Tensor, losses: Tensor) -> Tensor:
            self.iterations.add_(1)
            return x * self.iterations + losses.sum()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = Calibrates()
            self.b = Calibrates()

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x, torch.stack([x, x.cos()]))
            return self.b(y, torch.stack([x, y]))

    model, x = Model(), torch.tensor([0.5, 1.5])
    program = exported(
        copy.deepcopy(model), x, preserve_module_call_signature=("a", "b")
    ).run_decompositions({})
    assert_runs_as_eager(quietly(program), model, (x,))


# ---- pytorch#156206, #132921 --------------------------------------------------------------------


class Recorder:
    """A backend that counts graphs and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, module: torch.fx.GraphModule, example: list[Any]) -> Any:
        self.graphs.append(module)
        return module.forward


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = Adapter()
        self.b = Adapter()

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x))


def test_156206_submodules_swapped_for_compiled_ones() -> None:
    model, x = Stack(), torch.randn(3, 2)
    ours = ours_of(copy.deepcopy(model), x, preserve_module_call_signature=("a", "b"))
    assert isinstance(ours.a, InterpreterModule)
    torch.testing.assert_close(ours(x), model(x))
    backend = Recorder()
    for name in ("a", "b"):
        ours.set_submodule(name, torch.compile(model.get_submodule(name), backend=backend))
    torch.testing.assert_close(ours(x), model(x))
    assert 1 <= len(backend.graphs) <= 2


def test_preserved_module_takes_an_argument_called_input() -> None:
    """torch's copy of the graph renames a node that is called like a builtin, and then does not
    find it in the signature."""
    model, x = nn.Sequential(Adapter(), Adapter()), torch.randn(3, 2)
    ours = ours_of(copy.deepcopy(model), x, preserve_module_call_signature=("0", "1"))
    torch.testing.assert_close(ours(x), model(x))
    torch.testing.assert_close(ours.get_submodule("0")(x), model[0](x))
    for name in ("0", "1"):
        ours.set_submodule(name, model.get_submodule(name))
    torch.testing.assert_close(ours(x), model(x))


def test_132921_compile_in_place() -> None:
    model, x = nn.Sequential(Adapter(), Adapter()), torch.randn(3, 2)
    ours = ours_of(model, x)
    backend = Recorder()
    ours.compile(backend=backend, fullgraph=True)
    torch.testing.assert_close(ours(x), model(x))
    assert len(backend.graphs) == 1
    ours(x)
    assert len(backend.graphs) == 1


def test_132921_compile_a_submodule_in_place() -> None:
    model, x = nn.Sequential(Adapter(), Adapter()), torch.randn(3, 2)
    ours = ours_of(model, x)
    ours(x)  # with a plan made, which has to be left
    backend = Recorder()
    ours.get_submodule("0").compile(backend=backend, fullgraph=True)
    torch.testing.assert_close(ours(x), model(x))
    assert len(backend.graphs) == 1

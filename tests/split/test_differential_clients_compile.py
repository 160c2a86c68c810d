"""Splitting whole models as vLLM does, and the open bugs that users have reported of the split.

Graphs come from export and from Dynamo; what is right comes from the model itself, and from torch's
split where that works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.backends.registry import lookup_backend
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule

from fxpress.split_module import _decompose_size_nodes, split_module
from tests.support.clients import ATTENTION, SplittingBackend, around, replace_submodules
from tests.support.deferred import assert_equal, in_blocks
from tests.support.split_cases import assert_split_as_torch

pytestmark = pytest.mark.slow("each case is done by torch too")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def aot_eager(module: GraphModule, example: list[Any]) -> Callable[..., Any]:
    _LazyGraphModule.force_recompile(module)  # Dynamo asks for torch's lazy modules
    return torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=True)


# ---- vLLM ----


def llama(layers: int = 3) -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=96,
        max_position_embeddings=64,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    return model.eval().requires_grad_(False)


def tokens(length: int, batch: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, 96, (batch, length), generator=generator)


@pytest.mark.parametrize("tuple_return", [False, True])
def test_exported_llama_around_attention(tuple_return: bool) -> None:
    model = llama()
    whole = torch.export.export(model, (tokens(8),), {"use_cache": False}, strict=False).module()
    codegen, whole.graph._codegen = whole.graph._codegen, torch.fx.graph.CodeGen()
    callback = around(whole, ATTENTION)
    options = {"keep_original_order": True, "tuple_return": tuple_return}
    assert assert_split_as_torch(whole, callback, **options) is not None
    split = split_module(whole, None, callback, **options)
    pieces = replace_submodules(split)
    assert len(pieces) == 7  # 3 attentions and what is between them
    split.graph._codegen = codegen
    split.recompile()
    assert_equal(split(tokens(8), use_cache=False).logits, model(tokens(8)).logits)
    assert [piece.calls for piece in pieces] == [1] * 7


@pytest.mark.parametrize(
    "piecewise",
    [
        pytest.param(False, id="as it is"),
        pytest.param(True, id="aot_eager", marks=pytest.mark.deep("compiles every piece")),
    ],
)
def test_compiled_llama_around_attention(piecewise: bool) -> None:
    """#117406: sizes as inputs of the graph that the partitions need."""
    model = llama(2)
    backend = SplittingBackend(
        lambda module: around(module, ATTENTION),
        prepare=_decompose_size_nodes,
        compile_piece=aot_eager if piecewise else None,
        keep_original_order=True,
    )
    run = torch.compile(model, backend=backend, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for count, length in enumerate((8, 13, 21), start=1):
            result = run(tokens(length), use_cache=False)
            torch.testing.assert_close(result.logits, model(tokens(length)).logits)
            assert [piece.calls for piece in backend.pieces] == [count] * 5
    assert len(backend.splits) == 1
    crossing = {
        name for name, node in backend.placeholders() if is_symbolic(node.meta["example_value"])
    }
    assert len(crossing) > 1


def is_symbolic(value: object) -> bool:
    return isinstance(value, torch.SymInt)


# ---- sizes ----


def viewing(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    shape = x.size()
    summed = (x.reshape(-1) + y.reshape(-1)).relu()
    return summed.view(shape) * shape[0] + torch.ones(x.size(0), shape[1])


def node_by_node(module: GraphModule) -> Callable[[Node], int]:
    return in_blocks(module, 1)


def test_torch_size_across_a_split() -> None:
    """vllm#36038: a torch.Size cannot be an input of a compiled partition."""
    backend = SplittingBackend(node_by_node, prepare=_decompose_size_nodes, compile_piece=aot_eager)
    run = torch.compile(viewing, backend=backend, fullgraph=True, dynamic=True)
    for rows in (3, 5):
        x, y = torch.randn(rows, 4), torch.randn(4, rows)
        assert_equal(run(x, y), viewing(x, y))
    assert len(backend.splits) == 1
    values = [node.meta["example_value"] for _, node in backend.placeholders()]
    assert not any(isinstance(value, torch.Size) for value in values)
    assert any(is_symbolic(value) for value in values)


def test_torch_size_across_a_split_as_it_is() -> None:
    """Nothing is compiled, so a torch.Size may cross as any other value does."""
    backend = SplittingBackend(node_by_node)
    run = torch.compile(viewing, backend=backend, fullgraph=True, dynamic=True)
    x, y = torch.randn(3, 4), torch.randn(4, 3)
    assert_equal(run(x, y), viewing(x, y))


@pytest.mark.parametrize("block", [1, 2, 3])
def test_symbolic_sizes_across_splits(block: int) -> None:
    """#117406: a partition that gets a tensor gets the symbols of its shape as well."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = (x @ w).reshape(x.shape[0] * x.shape[1], -1)
        z = y.new_ones(x.shape[1], y.shape[0]) @ y
        return z.view(-1)[: x.shape[0]] * w.shape[1]

    backend = SplittingBackend(lambda module: in_blocks(module, block), compile_piece=aot_eager)
    run = torch.compile(function, backend=backend, fullgraph=True, dynamic=True)
    for a, b, c in ((3, 4, 5), (6, 7, 8)):
        x, w = torch.randn(a, b, c), torch.randn(c, c)
        torch.testing.assert_close(run(x, w), function(x, w))
    assert len(backend.splits) == 1


def routed(x: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    """A mixture of experts: the sizes of the groups are read from a tensor."""
    chosen = x.argmax(-1)
    order = chosen.argsort(stable=True)
    counts = torch.bincount(chosen, minlength=3)
    sizes = counts[:3].tolist()
    groups = x[order].split(sizes)
    return torch.cat([(g @ e).relu() for g, e in zip(groups, experts, strict=True)])[order]


def counting(module: GraphModule) -> Callable[[Node], int]:
    """The callback of #155220: a new partition every five questions."""
    answers: dict[Node, int] = {}
    return lambda node: answers.setdefault(node, len(answers) // 5)


def of_nonzero(x: torch.Tensor) -> torch.Tensor:
    found = x.nonzero()
    count = found.shape[0]
    scale = x.sum().item()
    filled = x.new_zeros(count) + scale
    return filled.view(-1, 1) * found + count


UNBACKED = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


@pytest.mark.parametrize("order", [False, True], ids=["sorted", "original order"])
def test_group_sizes_across_splits(order: bool) -> None:
    """#155220: a symbol that a node of another partition binds made the ordering fail."""
    backend = SplittingBackend(counting, keep_original_order=order, keep_original_node_name=True)
    experts = torch.randn(3, 3, 4)
    with torch._dynamo.config.patch(**UNBACKED):
        run = torch.compile(routed, backend=backend, fullgraph=True)
        for seed in (0, 1):
            x = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))
            assert_equal(run(x, experts), routed(x, experts))
    assert any(is_symbolic(n.meta.get("example_value")) for _, n in backend.placeholders())


@pytest.mark.parametrize("block", [1, 2, 3, 4])
@pytest.mark.parametrize("order", [False, True], ids=["sorted", "original order"])
def test_unbacked_symbols_across_splits(block: int, order: bool) -> None:
    """torch reports a cycle when a partition binds a symbol of its inputs (S-27)."""
    backend = SplittingBackend(
        lambda module: in_blocks(module, block), as_torch=False, keep_original_order=order
    )
    with torch._dynamo.config.patch(**UNBACKED):
        run = torch.compile(of_nonzero, backend=backend, fullgraph=True)
        for x in (torch.tensor([1.0, 0.0, 2.0]), torch.tensor([0.0, 3.0, 0.0])):
            assert_equal(run(x), of_nonzero(x))


def test_partition_that_depends_on_a_symbol_of_a_later_partition() -> None:
    """#155220: in a cycle through a symbol both sides name the cycle, not a missing key."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        count = x.nonzero()
        return (count + 1).sum() + y.sum()

    graphs: list[GraphModule] = []

    def keep(module: GraphModule, example: list[Any]) -> GraphModule:
        graphs.append(module)
        return module

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.compile(function, backend=keep, fullgraph=True)(torch.ones(3), torch.ones(3))
    (module,) = graphs
    order = [n.name for n in module.graph.nodes if n.op.startswith("call_")]
    for ids in ([0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 2, 0]):
        partition = {name: ids[i % 4] for i, name in enumerate(order)}
        assert_split_as_torch(module, lambda n, p=partition: p[n.name])


# ---- modes ----


def with_modes(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    a = x @ w
    with torch.autocast("cpu", dtype=torch.bfloat16):
        b = a @ w
        c = b.relu() @ w
    with torch.no_grad():
        d = (c * 2).sum(0)
        e = d.float() @ w
    return a, b, c, d, e @ w


@pytest.mark.parametrize("block", [1, 2, 3, 5])
@pytest.mark.parametrize("order", [False, True], ids=["sorted", "original order"])
def test_autocast_and_grad_mode_across_splits(block: int, order: bool) -> None:
    """#113374: the partitions run in the modes of their nodes.

    torch's topological order can move a switch of the grad mode in front of partitions that stood
    before it; its results then have lost their gradients.
    """
    backend = SplittingBackend(
        lambda module: in_blocks(module, block), as_torch=order, keep_original_order=order
    )
    run = torch.compile(with_modes, backend=backend, fullgraph=True)
    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    ours, expected = run(x, w), with_modes(x, w)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert [t.dtype for t in ours] == [t.dtype for t in expected]
    assert [t.requires_grad for t in ours] == [t.requires_grad for t in expected]
    assert_equal(ours, expected)
    gradients = [torch.autograd.grad(o[2].sum() + o[4].sum(), w) for o in (ours, expected)]
    torch.testing.assert_close(*gradients, rtol=0.02, atol=0.02)  # bfloat16, in another order


@pytest.mark.parametrize("affix", [None, "pp"])
def test_modes_with_an_affix(affix: str | None) -> None:
    """torch fails with an affix here (S-21); ours names the partitions and is right."""
    graphs: list[GraphModule] = []

    def keep(module: GraphModule, example: list[Any]) -> Callable[..., Any]:
        split = split_module(module, None, in_blocks(module, 2), partition_affix=affix)
        graphs.append(split)
        return split

    x, w = torch.randn(3, 4), torch.randn(4, 4, requires_grad=True)
    ours = torch.compile(with_modes, backend=keep, fullgraph=True)(x, w)
    assert_equal(ours, with_modes(x, w))
    prefix = "submod_" if affix is None else f"submod_{affix}_"
    assert all(name.startswith(prefix) for name in graphs[0].meta["partition_names"])


# ---- bodies of higher order operators ----


def with_cond(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x @ w
    y = torch.cond(y.sum() > 0, lambda v: v.sin() + w, lambda v: v.cos() - w, (y,))
    return torch.cond(y.sum() > 5, lambda v: v + 1, lambda v: v - 1, (y * 2,))


class Checkpointed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(4, 4)
        self.second = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        from torch.utils.checkpoint import checkpoint

        x = checkpoint(lambda v: self.first(v).relu(), x @ w, use_reentrant=False)
        return checkpoint(lambda v: self.second(v).relu(), x + 1, use_reentrant=False)


@pytest.mark.parametrize("block", [1, 2, 4])
@pytest.mark.parametrize("model", [with_cond, Checkpointed()], ids=["cond", "checkpoint"])
@pytest.mark.parametrize("order", [False, True], ids=["sorted", "original order"])
def test_bodies_of_higher_order_operators(
    model: Callable[..., Any], block: int, order: bool
) -> None:
    """#138787: the bodies are attributes of the partitions that use them, not inputs."""
    backend = SplittingBackend(lambda module: in_blocks(module, block), keep_original_order=order)
    run = torch.compile(model, backend=backend, fullgraph=True)
    for sign in (1, -1):
        x, w = sign * torch.ones(4, 4), torch.eye(4) * 3
        assert_equal(run(x, w), model(x, w))
    (split,) = backend.splits
    bodies = [
        node
        for name, child in split.named_children()
        if name in split.meta["partition_names"]
        for node in child.graph.find_nodes(op="get_attr")
    ]
    assert bodies
    assert all(isinstance(_body(node), GraphModule) for node in bodies)


def _body(node: Node) -> Any:
    return node.graph.owning_module.get_submodule(node.target)


def test_body_and_tensor_interleaved_in_one_partition() -> None:
    """#138787, #182644: inputs first, then bodies, whatever their order of use."""
    body = Graph()
    body.output((body.call_function(torch.sin, (body.placeholder("v"),)),))
    graph = Graph()
    inner = graph.get_attr("body")
    x = graph.placeholder("x")
    weight = graph.get_attr("weight")
    y = graph.placeholder("y")
    first = graph.call_function(call_body, (inner, x))
    second = graph.call_function(torch.add, (first, weight))
    third = graph.call_function(call_body, (inner, second))
    graph.output(graph.call_function(torch.mul, (third, y)))
    root = torch.nn.Module()
    root.body = GraphModule({}, body)
    root.weight = torch.nn.Parameter(torch.full((3,), 2.0))
    module = GraphModule(root, graph)
    args = torch.randn(3), torch.randn(3)
    for block in (1, 2, 4):
        for order in (False, True):
            split = assert_split_as_torch(
                module, in_blocks(module, block), keep_original_order=order
            )
            assert split is not None
            assert_equal(split(*args), module(*args))


def call_body(body: Callable[[Any], Any], value: torch.Tensor) -> torch.Tensor:
    return body(value)[0]


@pytest.mark.parametrize("names", [False, True], ids=["new names", "original names"])
@pytest.mark.parametrize("order", [False, True], ids=["sorted", "original order"])
def test_attributes_between_placeholders(order: bool, names: bool) -> None:
    """#182644: placeholders of the result stay in order if other nodes are between them."""
    graph = Graph()
    first = graph.get_attr("weight")
    x = graph.placeholder("x")
    a = graph.call_function(torch.add, (x, first))
    second = graph.get_attr("inner.weight")
    y = graph.placeholder("y")
    b = graph.call_function(torch.mul, (a, y))
    third = graph.get_attr("weight")
    z = graph.placeholder("z", default_value=None)
    c = graph.call_function(torch.sub, (b, second))
    graph.output((graph.call_function(torch.sub, (c, third)), z))
    root = torch.nn.Module()
    root.weight = torch.nn.Parameter(torch.full((3,), 2.0))
    root.inner = torch.nn.Linear(3, 3)
    module = GraphModule(root, graph)
    for block in (1, 2, 3):
        split = assert_split_as_torch(
            module,
            in_blocks(module, block),
            keep_original_order=order,
            keep_original_node_name=names,
        )
        assert split is not None
        args = torch.randn(3, 3), torch.randn(3, 3)
        assert_equal(split(*args), module(*args))
        assert_equal(split(*args, 7), module(*args, 7))


# ---- backends that compile each partition ----


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_each_partition_through_a_registered_backend(backend: str) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x).tanh() + x.shape[0]

    compile_piece = lookup_backend(backend)
    splitting = SplittingBackend(
        lambda module: in_blocks(module, 2),
        compile_piece=lambda module, example: compile_piece(module, example),
        tuple_return=True,
    )
    model, x = Net(), torch.randn(5, 4)
    result = torch.compile(model, backend=splitting, fullgraph=True)(x)
    assert_equal(result, model(x))

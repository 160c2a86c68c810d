"""torch's callers of split_module with fxpress installed, compared with eager and torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._dynamo.backends.distributed import DDPOptimizer
from torch._dynamo.backends.registry import lookup_backend
from torch._export.utils import sequential_split
from torch.distributed.pipelining import SplitPoint, pipe_split, pipeline
from torch.fx import GraphModule
from torch.fx.experimental.accelerator_partitioner import Partitioner
from torch.fx.experimental.const_fold import split_const_subgraphs
from torch.fx.experimental.partitioner_utils import Device, PartitionerConfig, PartitionMode
from torch.fx.passes.graph_manipulation import get_size_of_all_nodes
from torch.nn.parallel import DistributedDataParallel

from tests.support.clients import in_torchs_place
from tests.support.compare import assert_same_module
from tests.support.deferred import assert_equal
from tests.support.versions import needs_parity


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Layer(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(size, 2 * size)
        self.down = torch.nn.Linear(2 * size, size)
        self.register_buffer("shift", torch.full((size,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x))) + self.shift


class Model(torch.nn.Module):
    """Layers, a parameter that two of the stages use, and a value that skips a stage."""

    def __init__(self, size: int = 8, *, marked: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(Layer(size) for _ in range(4))
        self.shared = torch.nn.Parameter(torch.ones(size))
        self.marked = marked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = x = self.layers[0](x) * self.shared
        for layer in self.layers[1:]:
            if self.marked:
                pipe_split()
            x = layer(x)
        return x * self.shared + first


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


# ---- torch.distributed.pipelining ----


def stages_of(model: torch.nn.Module, x: torch.Tensor) -> Any:
    spec = {f"layers.{i}": SplitPoint.BEGINNING for i in (1, 2, 3)}
    return pipeline(model, (x,), split_spec=None if model.marked else spec)


@pytest.mark.parametrize("marked", [False, True], ids=["split points", "pipe_split"])
def test_pipelining(marked: bool) -> None:
    x, model = torch.randn(4, 8), Model(marked=marked)
    expected = model(x)
    theirs = stages_of(Model(marked=marked), x)
    with in_torchs_place():
        ours = stages_of(model, x)
    assert ours.num_stages == theirs.num_stages == 4
    assert_equal(ours(x), (expected,))
    assert ours.replicated_params == theirs.replicated_params
    for index in range(4):
        mine, other = ours.get_stage_module(index), theirs.get_stage_module(index)
        assert mine.code == other.code
        assert list(mine.state_dict()) == list(other.state_dict())
    assert ours.split_gm.code == theirs.split_gm.code


def run_stages(pipe: Any, x: torch.Tensor) -> torch.Tensor:
    """Each stage by hand: the base graph determines the assignment."""
    values: dict[Any, Any] = {}
    for node in pipe.split_gm.graph.nodes:
        args = torch.fx.node.map_arg(node.args, values.__getitem__)
        if node.op == "placeholder":
            values[node] = x
        elif node.op == "call_module":
            values[node] = getattr(pipe.split_gm, node.target)(*args)
        elif node.op == "call_function":
            values[node] = node.target(*args)
        else:
            (result,) = torch.utils._pytree.tree_leaves(args)
    return result


def test_stages_of_a_pipeline_in_order_with_gradients() -> None:
    x, model = torch.randn(4, 8), Model()
    expected = model(x)
    expected.square().sum().backward()
    wanted = gradients(model)
    model.zero_grad()
    with in_torchs_place():
        pipe = stages_of(model, x)
    result = run_stages(pipe, x)
    assert_equal(result, expected)
    result.square().sum().backward()
    got: dict[str, torch.Tensor] = {}
    for index in range(4):
        for name, gradient in gradients(pipe.get_stage_module(index)).items():
            got[name] = got.get(name, 0) + gradient
    assert got.keys() == wanted.keys()
    torch.testing.assert_close(got, wanted)


class Tied(torch.nn.Module):
    """A Llama in small: the head is the embedding, so that both ends use one parameter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(16, 8)
        self.layers = torch.nn.ModuleList(Layer(8) for _ in range(2))
        self.norm = torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        angles = torch.outer(positions.float(), torch.ones(8)).cos()
        for layer in self.layers:
            x = layer(x * angles)
        return self.head(self.norm(x))


@pytest.mark.parametrize("points", [["layers.1"], ["layers.0", "layers.1", "norm"], ["head"]])
def test_pipelining_with_tied_weights(points: list[str]) -> None:
    """pt#182644, pt#162898: attributes between the placeholders of a stage."""
    tokens, model = torch.randint(0, 16, (2, 5)), Tied()
    spec = dict.fromkeys(points, SplitPoint.BEGINNING)
    theirs = pipeline(model, (tokens,), split_spec=spec)
    with in_torchs_place():
        ours = pipeline(Tied(), (tokens,), split_spec=spec)
    assert ours.num_stages == len(points) + 1
    assert_equal(ours(tokens), (model(tokens),))
    assert ours.replicated_params == theirs.replicated_params
    for index in range(ours.num_stages):
        mine, other = ours.get_stage_module(index), theirs.get_stage_module(index)
        assert mine.code == other.code
        assert list(mine.state_dict()) == list(other.state_dict())


def test_stage_runtime(process_group: None) -> None:
    from torch.distributed.pipelining import ScheduleGPipe

    x = torch.randn(4, 8)
    model = torch.nn.Sequential(Layer(8), Layer(8))
    with in_torchs_place():
        pipe = pipeline(model, (x[:2],))
    stage = pipe.build_stage(0, torch.device("cpu"))
    # A batch's rows may differ from the rows of its parts in the last bit.
    expected = torch.cat([model(part) for part in x.chunk(2)])
    assert_equal(ScheduleGPipe(stage, n_microbatches=2).step(x), expected)


# ---- DDPOptimizer ----


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("cap", [1, 700, 2000])
def test_ddp_optimizer(backend: str, cap: int) -> None:
    x, model = torch.randn(4, 8), Model()
    expected = model(x)
    expected.sum().backward()
    wanted = gradients(model)
    model.zero_grad()
    optimizer = DDPOptimizer(cap, lookup_backend(backend), first_bucket_cap=cap)
    with in_torchs_place() as split:
        result = torch.compile(model, backend=optimizer.compile_fn, fullgraph=True)(x)
    assert len(split) == 1
    assert len(optimizer.buckets) > 1
    assert_equal(result, expected)
    result.sum().backward()
    torch.testing.assert_close(gradients(model), wanted)


def test_ddp(process_group: None) -> None:
    x, model = torch.randn(4, 300), Model(300)
    expected = model(x)
    expected.sum().backward()
    wanted = gradients(model)
    model.zero_grad()
    parallel = DistributedDataParallel(model, bucket_cap_mb=1)
    with in_torchs_place():
        result = torch.compile(parallel, backend="aot_eager")(x)
    torch.testing.assert_close(result, expected)
    result.sum().backward()
    torch.testing.assert_close(gradients(model), wanted)


# ---- constant folding ----


class Foldable(torch.nn.Module):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.outputs = outputs
        self.inner = torch.nn.Module()
        self.inner.weight = torch.nn.Parameter(torch.randn(4, 4))
        self.bias = torch.nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.tanh(self.inner.weight) + self.bias
        scale = self.bias.exp() if self.outputs == 2 else 1.0
        return torch.relu(x @ weight) * scale + self.bias


@pytest.mark.filterwarnings("ignore:Failed to fetch module")
@pytest.mark.parametrize("outputs", [1, 2])
def test_const_fold(outputs: int) -> None:
    x, model = torch.randn(3, 4), Foldable(outputs)
    theirs = split_const_subgraphs(model, device_for_folded_attrs="cpu")
    with in_torchs_place():
        ours = split_const_subgraphs(model, device_for_folded_attrs="cpu")
    assert ours.code == theirs.code
    assert ours.const_subgraph_module.code == theirs.const_subgraph_module.code
    assert_equal(ours(x), model(x))  # folds first
    assert ours.has_folding_been_run
    theirs.run_folding()
    assert_equal(dict(ours.state_dict()), dict(theirs.state_dict()))


@pytest.mark.filterwarnings("ignore:Failed to fetch module")  # torch's const_fold
def test_const_fold_skips_what_it_is_told() -> None:
    x, model = torch.randn(3, 4), Foldable(2)

    def folded() -> GraphModule:
        return split_const_subgraphs(model, lambda node: node.target == "exp", "cpu")

    theirs = folded()
    with in_torchs_place():
        ours = folded()
    assert ours.code == theirs.code
    assert "exp" in ours.code
    assert_equal(ours(x), model(x))


# ---- sequential_split ----


class Switching(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        x = self.linear(inputs["x"])
        with torch.no_grad():
            y = x.sin() + inputs["y"]
        return {"sum": x + y.cos(), "first": x}


@needs_parity
def test_sequential_split() -> None:
    inputs = {"x": torch.randn(2, 4), "y": torch.randn(2, 4)}
    program = torch.export.export(Switching(), (inputs,), strict=False)
    gm = program.graph_module

    def delimiter(node: torch.fx.Node) -> bool:
        return node.op.startswith("call_") and node.target in (
            torch.ops.aten.sin.default,
            torch.ops.aten.cos.default,
        )

    theirs = sequential_split(gm, delimiter)
    with in_torchs_place():
        ours = sequential_split(gm, delimiter)
    assert len(ours.meta["partition_names"]) > 1
    assert_same_module(ours, theirs)
    flat = [*program.state_dict.values(), *inputs.values()]
    assert_equal(run(ours, flat), run(gm, flat))


def run(module: GraphModule, inputs: list[Any]) -> list[Any]:
    result = torch.fx.Interpreter(module).run(*inputs, enable_io_processing=False)
    return torch.utils._pytree.tree_leaves(result)


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export_replaces_grad_mode_by_regions(strict: bool) -> None:
    """export's own passes split at grad mode and autocast switches."""
    inputs = {"x": torch.randn(2, 4), "y": torch.randn(2, 4)}
    model = Switching()
    theirs = torch.export.export(model, (inputs,), strict=strict)
    with in_torchs_place():
        ours = torch.export.export(model, (inputs,), strict=strict)
    assert str(ours.graph) == str(theirs.graph)
    assert_equal(ours.module()(inputs), model(inputs))


# ---- accelerator_partitioner ----


class Branches(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 4)
        self.other = torch.nn.Linear(4, 4)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        left, right = self.linear(a + b), self.other(b)
        return left.relu() + right


@pytest.mark.parametrize("mode", [PartitionMode.size_based, PartitionMode.aot_based])
def test_accelerator_partitioner(mode: PartitionMode) -> None:
    model, args = Branches(), (torch.randn(4), torch.randn(4))

    def partitioned() -> GraphModule:
        traced = torch.fx.symbolic_trace(model)
        get_size_of_all_nodes(traced, args)
        nodes = [n for n in traced.graph.nodes if n.op != "output"]
        config = PartitionerConfig(
            [Device(f"dev_{i}", 200, i) for i in range(3)],
            mode,
            node_to_partition_mapping={n: i // 4 for i, n in enumerate(nodes)},
            partition_to_logical_device_mapping={i: [i] for i in range(3)},
        )
        return Partitioner().partition_graph(traced, model, config).module_with_submodules

    theirs = partitioned()
    with in_torchs_place():
        ours = partitioned()
    assert len(ours.meta["partition_names"]) > 1
    assert ours.print_readable(print_output=False) == theirs.print_readable(print_output=False)
    assert_equal(ours(*args), model(*args))

"""Programs on a GPU, through all components: equal to torch's and to eager results."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export

from fxpress import archive, decompose, state
from fxpress.export import module
from fxpress.serialize import deserialize, serialize
from fxpress.split_module import split_module
from fxpress.unflatten import unflatten
from tests.support.decompose_cases import assert_fresh_as_torch
from tests.support.decomposed import assert_same_program
from tests.support.deserialized import assert_reads_as_torch
from tests.support.programs import assert_exports_as_torch
from tests.support.serialized import assert_serializes_as_torch
from tests.support.split_cases import assert_split_as_torch, consecutive
from tests.support.unflatten_compare import assert_same_unflattened
from tests.support.unlifted import assert_module_as_torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.mix(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.norm(x + self.out(mixed.transpose(1, 2).flatten(2)))


class Model(nn.Module):
    """Layers that are alike, a buffer that is not saved, and a tensor made on the device."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(layers))
        self.register_buffer("scale", torch.rand(64), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        places = torch.arange(x.shape[1], device=x.device)
        return x * self.scale + places[:, None]


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
                for _ in range(3)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.blocks(x)


def transformer(dtype: torch.dtype = torch.float32) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Model().eval().to("cuda", dtype), torch.rand(2, 5, 64, device="cuda", dtype=dtype)


def convolutions() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Convolutions().eval().cuda(), torch.rand(2, 8, 6, 6, device="cuda")


MODELS = {
    "float32": transformer,
    "float16": lambda: transformer(torch.float16),  # other kernels of attention
    "bfloat16": lambda: transformer(torch.bfloat16),
    "convolutions": convolutions,
}


@pytest.fixture(params=MODELS)
def model(request: Any) -> tuple[nn.Module, torch.Tensor]:
    made: tuple[nn.Module, torch.Tensor] = MODELS[request.param]()
    return made


@pytest.fixture(autouse=True)
def _memory_is_freed() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_export(model: Any, strict: bool, dynamic: bool) -> None:
    shapes = ({0: Dim("batch", max=32)},) if dynamic else None
    net, x = model
    assert_exports_as_torch(net, (x,), strict=strict, dynamic_shapes=shapes)


@pytest.mark.parametrize("table", [None, {}], ids=["default", "empty"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_decompositions(model: Any, table: Any, dynamic: bool) -> None:
    net, x = model
    shapes = ({0: Dim("batch", max=32)},) if dynamic else None
    assert_fresh_as_torch(
        lambda: export(net, (x,), dynamic_shapes=shapes), lambda: table, instantiated=True
    )
    assert decompose.report().instantiated


def test_decompositions_of_autocast() -> None:
    """Templates of one choice of dtypes are not used under another one."""
    net, x = transformer()

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                return self.net(x)  # type: ignore[no-any-return]

    for program in (export(net, (x,)), export(Cast().eval(), (x,)), export(net, (x,))):
        ours = decompose.run_decompositions(program)
        assert_same_program(ours, program.run_decompositions())


def test_decompositions_with_another_kernel_of_attention() -> None:
    """The key of a template contains the choice of attention kernels."""
    net, x = transformer(torch.float16)
    program = export(net, (x,))
    for flash in (True, False, True):
        torch.backends.cuda.enable_flash_sdp(flash)
        try:
            ours, theirs = decompose.run_decompositions(program), program.run_decompositions()
        finally:
            torch.backends.cuda.enable_flash_sdp(True)
        assert_same_program(ours, theirs)


def test_modules(model: Any) -> None:
    net, x = model
    program = export(net, (x,))
    assert_module_as_torch(program)
    on_engine = module(program, engine=True)
    with torch.no_grad():
        assert torch.equal(on_engine(x), program.module()(x))


def test_unflattened(model: Any) -> None:
    net, x = model
    program = export(copy.deepcopy(net), (x,))
    ours = unflatten(program)
    assert_same_unflattened(ours, torch.export.unflatten(program), program)
    with torch.no_grad():
        assert torch.equal(ours(x), net(x))
    results = []
    for made in (ours, net):
        leaf = x.clone().requires_grad_()
        made(leaf).float().pow(2).sum().backward()
        results.append((leaf.grad, {n: p.grad for n, p in made.named_parameters()}))
    (mine, weights), (other, wanted) = results
    torch.testing.assert_close(mine, other)
    assert list(weights) == list(wanted)
    torch.testing.assert_close(weights, wanted)


def test_streams_of_the_caller() -> None:
    """Operators run on the stream that is the caller's at the time of a call."""
    net, x = transformer()
    ours = unflatten(export(net, (x,)))
    with torch.no_grad():
        expected = net(x)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            late = torch.zeros_like(x)
            late.copy_(x)
            result = ours(late)
        stream.synchronize()
    assert torch.equal(result, expected)


def test_in_a_cuda_graph() -> None:
    """The engine calls nothing that waits for the device, so that a CUDA graph can hold it."""
    net, x = transformer()
    ours = unflatten(export(net, (x,)))
    static = x.clone()
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                ours(static)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = ours(static)
        for seed in range(3):
            torch.manual_seed(seed)
            new = torch.rand_like(x)
            static.copy_(new)
            graph.replay()
            torch.testing.assert_close(result, net(new))


def test_nothing_waits_for_the_device() -> None:
    net, x = transformer()
    ours = unflatten(export(net, (x,)))
    flat = module(export(net, (x,)), engine=True)
    with torch.no_grad():
        for made in (ours, flat):
            made(x)
            torch.cuda.set_sync_debug_mode("error")
            try:
                made(x)
            finally:
                torch.cuda.set_sync_debug_mode("default")


def test_values_are_freed_after_their_last_use() -> None:
    class Chain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(50):
                x = x * 2 + 1
            return x

    x = torch.rand(1 << 20, device="cuda")
    ours = unflatten(export(Chain(), (x,)))
    peaks = []
    with torch.no_grad():
        for made in (Chain(), ours):
            made(x)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            made(x)
            peaks.append(torch.cuda.max_memory_allocated() - before)
    assert peaks[1] <= peaks[0]


def test_split() -> None:
    net, x = transformer()
    graph_module = export(net, (x,)).module()
    places = consecutive(graph_module.graph, 7)
    assert_split_as_torch(graph_module, lambda node: places[node])
    split = split_module(graph_module, None, lambda _: 0)
    with torch.no_grad():
        assert torch.equal(split(x)[0], net(x))


def test_bytes_and_back(model: Any) -> None:
    net, x = model
    program = export(net, (x,))
    assert_serializes_as_torch(program)
    assert_reads_as_torch(serialize(program))


@pytest.mark.parametrize("mmap", [False, True])
def test_files(model: Any, tmp_path: Path, mmap: bool) -> None:
    net, x = model
    program = export(net, (x,))
    with torch.no_grad():
        expected = program.module()(x)
    archive.save(program, tmp_path / "ours.pt2")
    torch.export.save(program, tmp_path / "torchs.pt2")
    for path in (tmp_path / "ours.pt2", tmp_path / "torchs.pt2"):
        for loaded in (archive.load(path, mmap=mmap), torch.export.load(path)):
            assert devices_of(loaded) == {"cuda"}
            with torch.no_grad():
                assert torch.equal(loaded.module()(x), expected)
    for place in ("cpu", "meta"):
        assert devices_of(archive.load(tmp_path / "ours.pt2", map_location=place)) == {place}


def devices_of(program: ExportedProgram) -> set[str]:
    return {value.device.type for value in program.state_dict.values()}


def test_a_program_of_the_cpu_onto_the_gpu(tmp_path: Path) -> None:
    """`map_location` moves the weights, and changes the devices in the graph."""
    net, x = transformer()
    program = export(copy.deepcopy(net).cpu(), (x.cpu(),))
    archive.save(program, tmp_path / "model.pt2")
    for options in ({}, {"mmap": True}):
        loaded = archive.load(tmp_path / "model.pt2", map_location="cuda", **options)
        assert devices_of(loaded) == {"cuda"}
        with torch.no_grad():
            torch.testing.assert_close(loaded.module()(x), net(x))


def test_graph_work_takes_no_memory_of_the_device() -> None:
    net, x = transformer()
    program = export(net, (x,))
    artifact = serialize(program)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    decompose.run_decompositions(program)
    decompose.run_decompositions(program, {})
    unflatten(program, device="meta")
    module(program)
    assert torch.cuda.max_memory_allocated() == before
    read = deserialize(artifact)
    weights = sum(value.untyped_storage().nbytes() for value in read.state_dict.values())
    assert torch.cuda.max_memory_allocated() <= before + 3 * weights


def test_state_shares_storages_on_the_device() -> None:
    whole = torch.rand(100, 100, device="cuda")
    parts = {"whole": whole, "row": whole[3], "column": whole[:, 4], "other": whole.clone()}
    for copies in (state.clone(parts), state.move(parts, "cpu"), state.move(parts, "cuda")):
        assert copies["row"].data_ptr() == copies["whole"][3].data_ptr()
        assert (
            copies["other"].untyped_storage().data_ptr()
            != copies["whole"].untyped_storage().data_ptr()
        )
        for name, value in parts.items():
            assert torch.equal(copies[name].cpu(), value.cpu())


def test_state_files(tmp_path: Path) -> None:
    values = {str(i): torch.rand(1000 + i, device="cuda") for i in range(50)}
    buffer = io.BytesIO()
    state.write(values, buffer)
    buffer.seek(0)
    for name, value in state.read(buffer, map_location="cuda").items():
        assert value.device.type == "cuda"
        assert torch.equal(value, values[name])


def test_not_enough_memory() -> None:
    """torch's error is raised, and tensors that were already copied to the device are freed."""
    _, total = torch.cuda.mem_get_info()
    values = [torch.zeros(1 << 20) for _ in range(200)]
    before = torch.cuda.memory_allocated()
    torch.cuda.set_per_process_memory_fraction((before + (100 << 20)) / total)
    try:
        with pytest.raises(torch.OutOfMemoryError):
            state.move(values, "cuda")
        assert torch.cuda.memory_allocated() == before
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert [v.device.type for v in state.move(values, "cuda")] == ["cuda"] * 200

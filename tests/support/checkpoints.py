"""States, programs and meshes for tests of checkpoints."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.export import ExportedProgram, export

from fxpress.checkpoint import ArchiveReader
from tests.support.process import bytes_read

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
HEADERS = 90_000  # bytes; the reader of a zip file searches its last 65,557 bytes for the end


def state_of_all_kinds() -> dict[str, Tensor]:
    """Return tensors with the dtypes, sizes and strides that a state may have."""
    torch.manual_seed(3)
    made: dict[str, Tensor] = {}
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, *FLOAT8):
        made[f"of.{dtype}".replace("torch.", "")] = torch.randn(8, 12).to(dtype)
    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16):
        made[f"of.{dtype}".replace("torch.", "")] = torch.randint(0, 100, (9, 5)).to(dtype)
    made["bool"] = torch.rand(7) < 0.5
    made["complex"] = torch.randn(3, 4, dtype=torch.complex64)
    made["scalar"] = torch.tensor(2.5)
    made["empty"] = torch.zeros(0, 4)
    base = torch.randn(6, 10)
    made["base"], made["row"], made["transposed"] = base, base[2], base.t()
    made["column"], made["steps"] = base[:, 3], base[::2, 1::3]
    made["expanded"] = torch.randn(1, 5).expand(4, 5)
    made["four"] = torch.randn(4, 3, 8, 2).permute(2, 0, 3, 1)
    return made


class Tied(nn.Module):
    """A model with tied weights, a buffer in bfloat16, and a batch norm, which counts batches."""

    def __init__(self, width: int = 16, layers: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norm = nn.BatchNorm1d(width)
        self.register_buffer("scale", torch.full((width,), 0.5, dtype=torch.bfloat16))
        self.head = nn.Linear(width, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.head(self.norm(x) * self.scale.float())


def tied_program(seed: int = 0, width: int = 16) -> ExportedProgram:
    torch.manual_seed(seed)
    return export(Tied(width).eval(), (torch.randint(0, 32, (4,)),))


def blank(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors of the same types, in which each byte is 1."""
    return {
        name: torch.ones(value.nbytes, dtype=torch.uint8).view(value.dtype).reshape(value.shape)
        for name, value in state.items()
    }


def assert_same(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """Tensors are equal bit for bit."""
    assert sorted(found) == sorted(wanted)
    for name, value in wanted.items():
        one = found[name]
        assert (one.dtype, one.shape) == (value.dtype, value.shape), name
        assert bits(one) == bits(value), name


def bits(tensor: Tensor) -> bytes:
    plain = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach()).flatten()
    return plain.view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def load(state: dict[str, Any], path: Path | str, **options: Any) -> dict[str, Any]:
    """Fill a state in this process alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, storage_reader=ArchiveReader(path, **options), no_dist=True)
    return state


def save(state: dict[str, Any], writer: Any) -> None:
    """Save a state of this process alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, storage_writer=writer, no_dist=True)


class Counting(ArchiveReader):
    """A reader that counts the bytes that it reads: of headers, and of tensors."""

    headers = 0
    tensors = 0

    def read_metadata(self) -> Metadata:
        before = bytes_read()
        found = super().read_metadata()
        self.headers += bytes_read() - before
        return found

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        before = bytes_read()
        found = super().prepare_local_plan(plan)
        self.headers += bytes_read() - before
        return found

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Any:
        before = bytes_read()
        found = super().read_data(plan, planner)
        self.tensors += bytes_read() - before
        return found


PLACEMENTS: dict[str, Any] = {
    "rows": (None, [Shard(0)]),
    "columns": (None, [Shard(1)]),
    "replicated": (None, [Replicate()]),
    "grid": ((2, 2), [Shard(0), Shard(1)]),
    "grid, rows": ((2, 2), [Shard(0), Shard(0)]),
    "grid, replicated": ((2, 2), [Replicate(), Shard(1)]),
}


def distributed(state: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """Distribute tensors over all ranks; a tensor with too few dimensions remains a plain copy."""
    shape, placements = PLACEMENTS[name]
    mesh = init_device_mesh("cpu", shape or (dist.get_world_size(),))
    dims = 1 + max((each.dim for each in placements if isinstance(each, Shard)), default=0)
    return {
        key: distribute_tensor(value, mesh, placements, src_data_rank=None)
        if value.dim() >= dims
        else value.clone()
        for key, value in state.items()
    }


def whole(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the values of a state as full tensors."""
    return {
        key: value.full_tensor() if isinstance(value, DTensor) else value
        for key, value in state.items()
    }


def local(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """The values that this rank has of a state."""
    return {
        key: value.to_local() if isinstance(value, DTensor) else value
        for key, value in state.items()
    }


def local_bytes(state: Mapping[str, Any]) -> int:
    """The bytes that this rank has of a state."""
    return sum(value.nbytes for value in local(state).values())

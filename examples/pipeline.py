"""Split a model into two stages, and run them as a pipeline of two processes."""

import os
import socket

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from fxpress import partition
from fxpress.split_module import split_module

STAGES = 2
MICROBATCHES = 4


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(self.norm(x)).relu())


def run_stage(rank: int, port: int) -> None:
    """Run one stage; every process makes the same model, and keeps its own part."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.distributed.init_process_group("gloo", rank=rank, world_size=STAGES)
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(16) for _ in range(6))).eval()
    x = torch.randn(8, 16)
    traced = torch.fx.symbolic_trace(model)
    stages = partition.balanced(traced, STAGES, by="parameters")
    split = split_module(traced, None, stages, keep_original_order=True)
    module = split.get_submodule(f"submod_{rank}")
    weights = sum(parameter.numel() for parameter in module.parameters())
    print(f"stage {rank}: {len(module.graph.nodes)} nodes, {weights:,} parameters", flush=True)

    with torch.no_grad():
        stage = PipelineStage(module, rank, STAGES, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, n_microbatches=MICROBATCHES)
        result = schedule.step(x) if rank == 0 else schedule.step()
        if rank == STAGES - 1:
            torch.testing.assert_close(result, model(x))
            print("the pipeline computes what the model computes", flush=True)
    torch.distributed.destroy_process_group()


def main() -> None:
    with socket.socket() as probe:  # a port that is free now
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(run_stage, (port,), nprocs=STAGES)


if __name__ == "__main__":
    main()

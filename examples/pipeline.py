"""Train a model in stages, one on each rank; an interrupted run continues."""

from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.export import Dim, export

from fxpress import pipeline
from fxpress.checkpoint import ArchiveReader, ArchiveWriter

FOLDER, STEPS = Path("pipeline-run"), 8
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(16, 32, generator=torch.Generator().manual_seed(step))
    return x, x.roll(1, dims=1)


def state(begin: int) -> dict[str, dict[str, object] | int]:  # keys: the entire model's names
    weights, moments = get_state_dict(stage.module, optimizer, options=FLAT)
    return {"model_state_dict": weights, "optim_state_dict": moments, "begin": begin}


torch.manual_seed(0)
model = nn.Sequential(*(nn.Sequential(nn.GELU(), nn.Linear(32, 32)) for _ in range(6)))
distributed.init_process_group("gloo")
if distributed.get_rank() == 0 and not (FOLDER / "stages").exists():
    FOLDER.mkdir(exist_ok=True)
    program = export(model, batch(0)[:1], dynamic_shapes=({0: Dim("batch", min=2)},))
    pipeline.save_stages(program, FOLDER / "stages", distributed.get_world_size())
distributed.barrier()
(stage,) = pipeline.load_stages(FOLDER / "stages", "1F1B")  # reads only this stage
schedule = pipeline.build_schedule("1F1B", stage, 4, loss_fn=nn.functional.mse_loss)
optimizer, begin = torch.optim.AdamW(stage.module.parameters(), 0.01), 0
if (FOLDER / "checkpoint").exists():
    dcp.load(saved := state(0), storage_reader=ArchiveReader(FOLDER / "checkpoint"))
    begin = saved.pop("begin")
    set_state_dict(stage.module, optimizer, options=FLAT, **saved)
for step in range(begin, STEPS):
    x, target = batch(step)
    schedule.step(*([x] if stage.number == 0 else []), target=target, losses=(losses := []))
    optimizer.step()
    optimizer.zero_grad()
    dcp.save(state(step + 1), storage_writer=ArchiveWriter(FOLDER / "checkpoint"))
    if losses:  # only the rank of the last stage has the losses of the microbatches
        print(f"step {step}: loss {sum(losses) / 4:.7f}", flush=True)
optimizer = torch.optim.AdamW(model.parameters(), 0.01)  # to compare: train without stages
for x, target in map(batch, range(STEPS)):
    nn.functional.mse_loss(model(x), target).backward()
    optimizer.step()
    optimizer.zero_grad()
whole = {name: model.state_dict()[name] for name in stage.module.state_dict()}
torch.testing.assert_close(dict(stage.module.state_dict()), whole, rtol=1e-3, atol=1e-4)
print(f"stage {stage.number} has the weights of the whole model", flush=True)
distributed.destroy_process_group()

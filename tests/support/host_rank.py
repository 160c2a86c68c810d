"""A rank on a host of its own: host_rank RANK SIZE ADDRESS STAGES FOLDER STEPS TIMEOUT."""

from __future__ import annotations

import datetime
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from fxpress import pipeline
from tests.support import pipelines

PORT = 29500


def steps_of(rank: int, path: Path, steps: int, timeout: float, mark: Path) -> Any:
    """Train until an error: its text and how long the step took. Without: losses and state."""
    if steps:
        return pipelines.train(rank, path, "1F1B", steps, timeout)
    (stage,) = pipeline.load_stages(path, "1F1B")
    built = pipeline.build_schedule("1F1B", stage, 4, loss_fn=pipelines.loss_of, timeout=timeout)
    tokens, target = pipelines.batches(1)[0]
    last = {"target": target} if stage.number + 1 == stage.count else {}
    while True:
        start = time.monotonic()
        try:
            built.step(*([tokens] if rank == 0 else []), **last)
        except pipeline.PipelineError as error:
            return str(error), time.monotonic() - start
        mark.touch()


def main() -> None:
    """Join the group, and leave what is returned in a file."""
    rank, size, address, path, name, steps, timeout = sys.argv[1:]
    folder = Path(name)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{address}:{PORT}",
        rank=int(rank),
        world_size=int(size),
        timeout=datetime.timedelta(seconds=60),
    )
    mark = folder / f"stepped_{rank}"
    made = steps_of(int(rank), Path(path), int(steps), float(timeout), mark)
    torch.save(made, folder / f"result_{rank}")
    if int(rank) == 0 and not int(steps):
        time.sleep(float(timeout))  # it keeps the store, in which others look for the cause
    os._exit(0)


if __name__ == "__main__":
    main()

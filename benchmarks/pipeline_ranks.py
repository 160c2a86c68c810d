"""Run one rank of a pipeline from a file to its first batch, with torch's `pipeline` or fxpress.

torch: build the model, trace and split it with `torch.distributed.pipelining.pipeline`, load the
entire state dict, build the stage of the rank. fxpress: load the stage, which was saved before.
Time and memory are measured after all imports, when the ranks are connected.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.distributed.pipelining import Schedule1F1B, SplitPoint, pipeline

import memory


class Shape(NamedTuple):
    """The sizes of a Llama: the cost of tracing depends on layers, the cost of loading on bytes."""

    layers: int
    hidden: int
    inner: int
    heads: int  # twice the number of key-value heads


SHAPES = {"deep": Shape(32, 640, 1728, 10), "wide": Shape(12, 1024, 2752, 16)}
PARTS, LENGTH, VOCABULARY = 4, 8, 8000
MODEL, STAGES, RESULT = "model.pt", "stages", "result_{}.pt"


class Layer(nn.Module):  # type: ignore[misc]
    """A layer of a Llama that computes its rotary embedding itself.

    In transformers' models, all layers use one embedding, which the first stage would send to all
    later stages. torch's stages cannot train such a model.
    """

    def __init__(self, config: Any, number: int) -> None:
        from transformers.models.llama import modeling_llama

        super().__init__()
        self.rotary = modeling_llama.LlamaRotaryEmbedding(config)
        self.layer = modeling_llama.LlamaDecoderLayer(config, number)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        embedding = self.rotary(x, torch.arange(x.shape[1])[None])
        result: torch.Tensor = self.layer(x, position_embeddings=embedding)
        return result


class Llama(nn.Module):  # type: ignore[misc]
    """A Llama of 156 million parameters that returns its logits."""

    def __init__(self, shape: Shape) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRMSNorm

        super().__init__()
        config = LlamaConfig(
            hidden_size=shape.hidden,
            intermediate_size=shape.inner,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads // 2,
            max_position_embeddings=64,
        )
        config._attn_implementation = "sdpa"
        self.embedding = nn.Embedding(VOCABULARY, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, number) for number in range(shape.layers))
        self.norm = LlamaRMSNorm(config.hidden_size)
        self.head = nn.Linear(config.hidden_size, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def llama(shape: Shape) -> Llama:
    """Return a Llama with uninitialized parameters."""
    from transformers.initialization import no_init_weights

    with no_init_weights():
        made = Llama(shape)
    made.eval()
    return made


def example() -> torch.Tensor:
    """Return the tokens of one microbatch."""
    return batch()[:1]


def batch() -> torch.Tensor:
    """Return the tokens of a batch, which has a row for each microbatch."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, VOCABULARY, (PARTS, LENGTH), generator=generator)


def loss_of(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def _torchs(
    folder: Path, shape: Shape, rank: int, size: int, loss_fn: Any, lap: Callable[[str], None]
) -> Any:
    model = llama(shape)
    lap("build the model")
    cuts = {
        f"layers.{shape.layers * stage // size}": SplitPoint.BEGINNING for stage in range(1, size)
    }
    pipe = pipeline(model, (example(),), split_spec=cuts)
    lap("trace and split")
    state = torch.load(folder / MODEL, weights_only=True)
    module = pipe.get_stage_module(rank)
    own = {name: value for name, value in state.items() if name in module.state_dict()}
    module.load_state_dict(own, strict=False)  # state that is not in the file stays as built
    del state, own
    lap("load")
    stage = pipe.build_stage(rank, torch.device("cpu"))
    made = Schedule1F1B(stage, PARTS, loss_fn)
    lap("schedule")
    return made


def _ours(
    folder: Path, _: Shape, rank: int, size: int, loss_fn: Any, lap: Callable[[str], None]
) -> Any:
    from fxpress.pipeline import build_schedule, load_stages

    stages = load_stages(folder / STAGES)
    lap("load")
    made = build_schedule("1F1B", stages, PARTS, loss_fn=loss_fn)
    lap("schedule")
    return made


WAYS = {"ours": _ours, "torch": _torchs}


def work(
    way: str, folder: Path, shape: Shape, rank: int, size: int, port: int, *, train: bool
) -> dict[str, Any]:
    """Return the seconds of each part, and the bytes that were read and needed."""
    _import_everything()
    torch.set_num_threads(1)
    store = distributed.TCPStore("127.0.0.1", port, is_master=False)
    distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=size, timeout=datetime.timedelta(seconds=120)
    )
    distributed.barrier()
    laps: dict[str, float] = {}
    since: list[float] = []

    def lap(name: str) -> None:
        now = time.perf_counter()
        laps[name] = now - since[0]
        since[0] = now

    def run() -> tuple[Any, float]:
        since.append(time.perf_counter())
        cpu = time.process_time()
        made = WAYS[way](folder, shape, rank, size, loss_of if train else None, lap)
        with torch.set_grad_enabled(train):
            first, last = rank == 0, rank + 1 == size
            given = {"target": batch()} if train and last else {}
            result = made.step(*([batch()] if first else []), **given)
        lap("batch")
        cpu = time.process_time() - cpu
        distributed.barrier()
        if last and not train:
            torch.save(result, folder / RESULT.format(way))
        return made, cpu  # `made` is live until memory is measured

    read = _bytes_read()
    (made, cpu), needed = memory.measure(run)
    figures = {
        "wall": sum(laps.values()),
        "cpu": cpu,
        "read": _bytes_read() - read,
        "peak": None if needed is None else needed.result + needed.beyond,
        "laps": laps,
    }
    del made
    distributed.destroy_process_group()
    return figures


def _import_everything() -> None:
    """Import and start everything that both sides use, so that it is not measured."""
    import torch._dynamo
    import torch.distributed.tensor  # noqa: F401
    from transformers.models.llama import modeling_llama  # noqa: F401

    import fxpress.pipeline  # noqa: F401

    # Run kernels once: the pages of their libraries must not count as memory of a stage.
    made = Llama(Shape(1, 64, 128, 4))
    loss_of(made(batch()), batch()).backward()


def _bytes_read() -> int:
    """Return the bytes that this process has read from files and sockets."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar:"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", choices=WAYS, required=True, help="in which way")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("folder", type=Path)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("rank", type=int)
    parser.add_argument("size", type=int)
    parser.add_argument("port", type=int)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    place = (given.rank, given.size, given.port)
    found = work(given.worker, given.folder, SHAPES[given.shape], *place, train=given.train)
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""Compiled modules compared with torch's: torch's collection, real models, FSDP."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from fxpress.functional_export import check_reuse
from tests.support.exported import module_db_cases, tokens, transformer
from tests.support.sampled import sampled
from tests.support.tracking import Tracer, assert_same_traces

pytestmark = pytest.mark.slow("each case is done by torch too")


@pytest.mark.parametrize("name", sampled(sorted(module_db_cases()), 48, seed=0))
def test_module_db(name: str) -> None:
    given, build = module_db_cases()[name]
    torch.manual_seed(0)
    made = build()

    def program(t: Tracer) -> None:
        # A module may be lazy, or keep what it computed.
        t.call(copy.deepcopy(made), *given.args, fullgraph=False, **given.kwargs)

    assert_same_traces(program)


@pytest.mark.parametrize(("name", "checked"), [("bert", False), ("gpt2", False), ("llama", True)])
def test_transformers(name: str, checked: bool) -> None:
    """`checked`: each repeated layer is traced, and compared with the template's instance."""
    pytest.importorskip("transformers")
    model = transformer(name, layers=2 if checked else 1)

    def program(t: Tracer) -> None:
        compiled = t.compile(lambda x: model(x, use_cache=False)[0])
        for columns in (8, 8, 12):
            t.log(compiled(tokens(2, columns)))

    with check_reuse(checked):
        ours = assert_same_traces(program)
    assert ours.error is None, ours.message


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    if not dist.is_available() or not dist.is_gloo_available():
        pytest.skip("torch was built without gloo")
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


@pytest.mark.parametrize("skip_guards", [True, False])
@pytest.mark.usefixtures("one_process")
def test_fully_sharded(skip_guards: bool) -> None:
    from torch.distributed.fsdp import fully_shard

    def program(t: Tracer) -> None:
        torch.manual_seed(0)
        made: Any = Blocks()
        for block in made.blocks:
            fully_shard(block)
        fully_shard(made)
        with torch._dynamo.config.patch(skip_fsdp_guards=skip_guards):
            compiled = t.call(made, torch.ones(2, 8), fullgraph=False)
            t.log(compiled(torch.ones(2, 8)))

    ours = assert_same_traces(program)
    assert ours.error is None, ours.message


@pytest.mark.usefixtures("one_process")
def test_distributed_data_parallel() -> None:
    def program(t: Tracer) -> None:
        torch.manual_seed(0)
        made = nn.parallel.DistributedDataParallel(Blocks())
        t.call(made, torch.ones(2, 8), fullgraph=False)

    assert_same_traces(program)

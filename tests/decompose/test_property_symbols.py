"""Generated programs with sizes that are symbols, which nothing has decomposed before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, reject
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export

from fxpress import decompose
from tests.support.decomposed import assert_same_program
from tests.support.generated import examples

F = nn.functional
OPERATIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.transpose(0, 1),
    lambda x: x * x.shape[0],
    lambda x: x[:, : x.shape[1] // 2 + 1],
    lambda x: torch.cat([x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]], 1),
    lambda x: torch.cat([x, x], 1),
    lambda x: x.reshape(x.shape[0], -1),
    lambda x: x.contiguous().view(-1).view(x.shape),
    lambda x: x.softmax(-1),
    lambda x: x - x.mean(0),
    lambda x: x[:1].expand(x.shape[0], *x.shape[1:]),
    lambda x: torch.cat(x.chunk(2, 0)),
    lambda x: x.repeat(2, *[1] * (x.dim() - 1)),
    lambda x: F.layer_norm(x, x.shape[-1:]),
    lambda x: x + torch.arange(x.shape[-1]),
    lambda x: F.pad(x, (1, 1)),
    lambda x: x.flatten(1) @ x.flatten(1).t(),
    lambda x: torch.where(x > 0, x, -x),
    lambda x: x.narrow(0, 0, x.shape[0] - 1),
    lambda x: torch.diff(x, dim=0),
    lambda x: torch.stack([x, x]).sum(0),
    lambda x: F.avg_pool1d(x.flatten(1).unsqueeze(1), 2).squeeze(1),
)


class Steps(nn.Module):
    """Each step uses the input or the result of an earlier step; some results are unused."""

    def __init__(self, steps: list[tuple[int, int]]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: Tensor) -> Any:
        made = [x]
        for operation, source in self.steps:
            made.append(OPERATIONS[operation](made[-1 - source % min(2, len(made))]))
        return made[-1], made[len(made) // 2].shape[0]


@pytest.mark.slow("generated programs that torch exports and decomposes twice")
@examples(12)
@given(
    st.lists(
        st.tuples(st.integers(0, len(OPERATIONS) - 1), st.integers(0, 1)), min_size=1, max_size=5
    ),
    st.sampled_from([(3, 6, 4), (4, 6), (5, 7, 3), (6, 6)]),
    st.lists(st.sampled_from([None, Dim.AUTO, Dim.DYNAMIC]), min_size=3, max_size=3),
    st.booleans(),
)
def test_generated_programs(
    steps: list[tuple[int, int]], shape: tuple[int, ...], dims: list[Any], is_default: bool
) -> None:
    """Guards are compared as sets: which ones torch records again depends on earlier exports of the
    process."""
    shapes = {i: dim for i, dim in enumerate(dims[: len(shape)]) if dim is not None}
    table: dict[Any, Any] | None = None if is_default else {}
    inputs = (torch.ones(shape),)
    try:
        programs = [export(Steps(steps), inputs, dynamic_shapes=(shapes,)) for _ in range(3)]
        FakeTensorMode.cache_clear()
        theirs = programs[0].run_decompositions(table)
    except Exception:
        reject()
    programs[2]._example_inputs = programs[0]._example_inputs
    decompose.run_decompositions(programs[1], table)
    FakeTensorMode.cache_clear()
    ours = decompose.run_decompositions(programs[2], table)
    assert set(ours._guards_code) == set(theirs._guards_code)
    ours._guards_code = theirs._guards_code
    assert_same_program(ours, theirs)

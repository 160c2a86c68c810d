"""Which stages zero-bubble schedules of torch can take the backward of in two parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.export import Dim, export

from fxpress import pipeline
from fxpress._torch.distributed import is_divisible
from tests.support.pipelines import VOCABULARY, WIDTH, train, trained_whole
from tests.support.ranks import run_ranks


def test_paths() -> None:
    x, w, v = (torch.ones(2, requires_grad=True) for _ in range(3))
    met = x * w
    assert is_divisible([met + v], [x], [w, v])  # the sum is on the path of x
    assert is_divisible([met, met * 2], [x], [w])
    assert not is_divisible([met, v * 2], [x], [w, v])
    assert not is_divisible([met * (w * v), w * 2], [x], [w, v])  # one path of w does not meet
    assert not is_divisible([w * 2], [torch.ones(2)], [w])
    assert not is_divisible([w * 2], [], [w])
    assert is_divisible([torch.ones(2), 3], [x], [w])


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.LayerNorm(4)


# What a stage computes, and whether its weights are on the path of the input several times with
# the weights of others between: these torch cannot do, in no order of the parameters.
COMPUTED: dict[str, tuple[Callable[[Parts, Tensor], Tensor], bool]] = {
    "once": (lambda m, x: m.b(m.norm(m.a(x))), True),
    "twice": (lambda m, x: m.a(m.a(x).tanh()), True),
    "beside": (lambda m, x: m.b(m.a(x).tanh() + m.a(x * 2).tanh()), True),
    "around": (lambda m, x: m.a(m.norm(m.a(x))), False),
    "crossed": (lambda m, x: m.b(m.a(m.b(m.a(x)).tanh())), False),
}


def divides(
    compute: Callable[[Parts, Tensor], Tensor], parts: Parts, names: tuple[str, ...]
) -> bool:
    """Return whether torch's split backward gives the gradients of the entire backward."""
    x = torch.rand(3, 4).requires_grad_()
    weights = [parts.get_parameter(name) for name in names]
    wanted = torch.autograd.grad(compute(parts, x).sum(), weights, allow_unused=True)
    parts.zero_grad()
    made = compute(parts, x)
    try:
        _, groups = stage_backward_input((made,), [torch.ones_like(made)], [x], iter(weights))
        stage_backward_weight(iter(weights), groups)
    except RuntimeError:
        return False
    return all(
        weight.grad is one if one is None else torch.allclose(weight.grad, one)
        for weight, one in zip(weights, wanted, strict=True)
    )


@pytest.mark.parametrize("name", COMPUTED)
def test_torch_does_what_is_taken_for_divisible(name: str) -> None:
    torch.manual_seed(0)
    compute, divisible = COMPUTED[name]
    parts = Parts()
    orders = list(itertools.permutations(dict(parts.named_parameters())))
    for names in orders[::17]:
        found = is_divisible(
            [compute(parts, x := torch.rand(3, 4).requires_grad_())],
            [x],
            [parts.get_parameter(each) for each in names],
        )
        assert not found or divides(compute, parts, names), names
    own = tuple(dict(parts.named_parameters()))
    x = torch.rand(3, 4).requires_grad_()
    assert is_divisible([compute(parts, x)], [x], parts.parameters()) == divisible
    assert divides(compute, parts, own) == divisible


class Shared(nn.Module):
    """A layer that is used again and again, with a norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(12))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for norm in self.norms:
            x = x + norm(self.layer(x).tanh())
        return self.head(x)


@pytest.mark.parametrize("schedule", ["InterleavedZeroBubble", "ZBVZeroBubble"])
def test_a_weight_that_a_stage_uses_several_times(schedule: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    example = torch.randint(0, VOCABULARY, (4, 8))
    program = export(Shared(), (example,), dynamic_shapes={"tokens": {0: Dim("batch")}})
    pipeline.save_stages(program, tmp_path / "stages", 4, by="flops")
    wanted, state = trained_whole(program, 3)
    found = run_ranks(2, train, tmp_path / "stages", schedule, 3)
    for losses, own in found:
        if any(losses):
            torch.testing.assert_close(losses, wanted, rtol=1e-5, atol=1e-6)
        for name, value in own.items():
            torch.testing.assert_close(value, state[name], rtol=1e-5, atol=1e-6, msg=name)

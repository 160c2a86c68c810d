"""Exported models: the engine, torch's Interpreter and the eager model give the same results."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.engine import Tower, assert_same, engine, info, tower, unflattened


class Attention(nn.Module):
    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (
            p.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for p in parts
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x).flatten(1)


class Counter(nn.Module):
    """Reads and writes a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x * self.count


class Structured(nn.Module):
    def forward(self, x: torch.Tensor, y: dict[str, torch.Tensor]) -> dict[str, Any]:
        values, indices = torch.topk(x, 2)
        first, *rest = x.split(1, dim=-1)
        return {"a": (values, indices), "b": [first, *rest, None], "c": y["k"] + 1, "n": 3}


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x)
        return y * scale, y.sum()


class UsesPair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.pair(x)
        c, _ = self.pair(a)
        return c + b


class Conditional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda v: self.linear(v).sin(), lambda v: v.cos(), (x,))


class Loop(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def condition(i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return i < 3

        def body(i: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, v * 2

        return torch.while_loop(condition, body, (torch.tensor(0), x))[1]


class Dynamic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 8), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.block(x)
        return torch.cat([y.reshape(x.shape[0] * 2, -1), y.new_zeros(x.shape[0] % 3 + 1, 4)]) * (
            x.shape[0] // 2
        )


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 6)
        self.register_buffer("scale", torch.tensor(3.0), persistent=False)
        self.shift = torch.ones(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x)[..., [0, 2]] * self.scale + self.shift[:2]


class Inplace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        y[0].mul_(2)
        y.view(-1)[1:].add_(1)
        return torch.add(y, 1, alpha=2, out=torch.empty_like(y))


CASES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tower": (lambda: Tower(), (torch.randn(2, 8),)),
    "attention": (lambda: nn.Sequential(Attention(), Attention()), (torch.randn(2, 5, 16),)),
    "convolution": (lambda: Convolution(), (torch.randn(2, 3, 12, 12),)),
    "convolution_eval": (lambda: Convolution().eval(), (torch.randn(2, 3, 12, 12),)),
    "counter": (lambda: nn.Sequential(Counter(), Counter()), (torch.randn(3),)),
    "structured": (lambda: Structured(), (torch.randn(3, 4), {"k": torch.randn(2)})),
    "pair": (lambda: UsesPair(), (torch.randn(3, 4),)),
    "cond": (lambda: Conditional(), (torch.randn(3, 4),)),
    "loop": (lambda: Loop(), (torch.randn(3),)),
    "embedded": (lambda: Embedded(), (torch.tensor([[1, 2], [3, 9]]),)),
    "lstm": (lambda: nn.LSTM(4, 5, num_layers=2), (torch.randn(3, 2, 4),)),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        (torch.randn(2, 3, 8),),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("grad", [True, False])
def test_models(name: str, grad: bool) -> None:
    torch.manual_seed(0)
    make, args = CASES[name]
    model = make()
    eager = copy.deepcopy(model)
    # torch cannot copy what it has unflattened: the graphs' meta holds fake tensors
    module, theirs = (unflattened(model, *copy.deepcopy(args)) for _ in range(2))
    with torch.set_grad_enabled(grad):
        for _ in range(3):
            with engine():
                ours = module(*args)
            expected = theirs(*args)
            assert_same(ours, expected)
            plain = eager(*args)
            torch.testing.assert_close(ours, plain)
    for (key, a), (other, b) in zip(
        module.state_dict().items(), theirs.state_dict().items(), strict=True
    ):
        assert key == other
        assert_same(a, b)


def test_everything_is_inlined() -> None:
    _, module, x = tower()
    with engine():
        module(x)
        assert info(module)["inlined"] > 10
        names = [m for m in module.modules() if hasattr(m, "graph")]
        assert [m for m in names if "_fxpress_plan" in vars(m.graph)] == [module]


@pytest.mark.parametrize("strict", [True, False])
def test_dynamic_shapes(strict: bool) -> None:
    model = Dynamic()
    dim = torch.export.Dim.DYNAMIC
    module = unflattened(model, torch.randn(7, 4), dynamic_shapes=({0: dim},))
    for n in (3, 4, 7, 60):
        x = torch.randn(n, 4)
        theirs = module(x)
        with engine():
            assert_same(module(x), theirs)
        torch.testing.assert_close(theirs, model(x))


@pytest.mark.parametrize("preserve", [("pair",), ()])
def test_module_called_twice(preserve: tuple[str, ...]) -> None:
    model = UsesPair()
    x = torch.randn(3, 4)
    module = unflattened(model, x, preserve=preserve)
    theirs = module(x)
    with engine():
        for _ in range(3):
            assert_same(module(x), theirs)


def test_backward_gives_the_same_gradients() -> None:
    model, module, x = tower()
    x.requires_grad_()
    with engine():
        module(x).sum().backward()
    ours, x.grad = x.grad, None
    model(x).sum().backward()
    torch.testing.assert_close(ours, x.grad)
    for (_, a), (_, b) in zip(model.named_parameters(), module.named_parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_autocast() -> None:
    _, module, x = tower()
    with torch.autocast("cpu", torch.bfloat16):
        theirs = module(x)
        with engine():
            assert_same(module(x), theirs)
    assert theirs.dtype == torch.bfloat16


def test_inference_mode_first_and_training_later() -> None:
    """Constants that are tensors are ordinary tensors, even if created in inference mode."""
    module = unflattened(Doubled(), torch.randn(3))
    with engine():
        with torch.inference_mode():
            module(torch.randn(3))
        x = torch.randn(3, requires_grad=True)
        module(x).sum().backward()
    assert x.grad is not None


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * 2.5 + 1) / 3


def test_results_alias_as_they_do_in_torch() -> None:
    class Views(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = x.view(-1)
            return y, y[1:], x

    x = torch.randn(2, 3)
    module = unflattened(Views(), x)
    with engine():
        a, b, c = module(x)
    assert c is x
    assert a.data_ptr() == x.data_ptr()
    assert b._base is x
    a[1] = 7
    assert x[0, 1] == 7
    assert b[0] == 7

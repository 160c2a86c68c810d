"""Programs for exports, with a special forward each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx.traceback as fx_traceback
from torch import nn

SLOW = pytest.mark.deep("many exports")
BOTH = pytest.mark.parametrize(
    "strict",
    [
        pytest.param(False, id="nonstrict"),
        pytest.param(True, id="strict", marks=pytest.mark.deep("Dynamo traces each model twice")),
    ],
)
Forward = Callable[..., Any]


class Made(nn.Module):
    """A module whose forward is a function that receives the module."""

    def __init__(self, function: Forward) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("temporary", torch.ones(4), persistent=False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


FORWARDS: dict[str, Forward] = {}


def program(function: Forward) -> Forward:
    FORWARDS[function.__name__] = function
    return function


@program
def views_and_writes(self: Any, x: Any) -> Any:
    y = x.clone()
    y[0].add_(1)
    y.view(-1)[2:5].mul_(2)
    z = y.t().contiguous()
    z.unsqueeze_(0)
    return y, z.squeeze(0).expand(4, 3), x.view(3, 4), x.contiguous()


@program
def several_outputs(self: Any, x: Any) -> Any:
    a, b = x.chunk(2, 1)
    c = x.split([1, 3], 1)
    values, indices = x.topk(2)
    d = torch.var_mean(x, 1)
    return a + b, c[1], values, indices, d, x.unbind(0), x.max(1), torch.meshgrid(x[0], x[1])


@program
def einsum_twice(self: Any, x: Any) -> Any:
    return torch.einsum("ij,kj->ik", x, x), torch.einsum("ij,ij->", x, x)


@program
def constants(self: Any, x: Any) -> Any:
    t = torch.tensor([1.0, 2.0, 3.0, 4.0])
    n = torch.tensor(3)
    return x + t, x * n, x[: n.item()], torch.tensor(2.0).sqrt() + x, x + torch.tensor(7)


@program
def factories(self: Any, x: Any) -> Any:
    a = torch.zeros(3, 4) + torch.ones_like(x) + torch.arange(4)
    return a + torch.full((3, 4), 2.5), torch.empty(2).fill_(1.0), torch.eye(4), x.new_zeros(2)


@program
def kinds_of_numbers(self: Any, x: Any) -> Any:
    c = torch.complex(x, x).conj()
    return c, c.imag, c + 1j, x.to(torch.float64), x > 0, x.int() // 2, x.bfloat16() * True


@program
def returns_its_input(self: Any, x: Any) -> Any:
    return x, x.contiguous(), x.to(torch.float32), x.detach(), [x, {"k": x}], None, 5, "text"


@program
def regions_of_gradients(self: Any, x: Any) -> Any:
    with torch.no_grad():
        a = self.linear(x)
        with torch.enable_grad():
            b = a * self.linear.weight.sum()
    return a + b, b.detach()


@program
def autocast(self: Any, x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y = self.linear(x)
        with torch.autocast("cpu", enabled=False):
            z = self.linear(x)
    return y, z + y


@program
def training(self: Any, x: Any) -> Any:
    return self.drop(self.norm(self.linear(x))), self.norm(x)


@program
def buffers_written(self: Any, x: Any) -> Any:
    self.seen.add_(x.sum(0))
    self.temporary.mul_(2)
    return x + self.seen, self.temporary + 1


@program
def buffer_assigned(self: Any, x: Any) -> Any:
    self.seen = self.seen + x.sum(0)
    return x * self.seen


@program
def input_written(self: Any, x: Any) -> Any:
    x.add_(1)
    return x.sin() + x.mul_(2)


@program
def of_data(self: Any, x: Any) -> Any:
    n = x.sum().int().item()
    torch._check(n >= 0)
    torch._check(n < 100)
    m = (x > 0).nonzero()
    return torch.zeros(n + 1) + 1, m + 1, x[x > 0], x.sum().item() + 2.5


@program
def branches(self: Any, x: Any) -> Any:
    def yes(x: Any) -> Any:
        return self.linear(x).sin() + x.sin()

    def no(x: Any) -> Any:
        return (x.cos() + x.cos()).sin()

    a = torch.cond(x.sum() > 0, yes, no, (x,))
    return torch.cond(x.shape[0] > 2, yes, no, (a.sin(),)).sin()


@program
def loop(self: Any, x: Any) -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    return while_loop(
        lambda i, y: i < 3, lambda i, y: (i + 1, y.sin().cos() + y), (torch.tensor(0), x.cos())
    )


@program
def scanned(self: Any, x: Any) -> Any:
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, y: (c + y, c * y), torch.zeros(4), x)


@program
def mapped(self: Any, x: Any) -> Any:
    from torch._higher_order_ops.map import map as mapping

    return mapping(lambda row, y: row.sin() + y, x, x.sum(0))


@program
def vmapped(self: Any, x: Any) -> Any:
    return torch.vmap(lambda row: row.sin() * row)(x), torch.func.vmap(torch.dot)(x, x)


@program
def recursive(self: Any, x: Any) -> Any:
    def forward(x: Any, n: int) -> Any:
        return x.sin() if n == 0 else forward(x.cos(), n - 1) + 1

    return forward(x, 9)


@program
def through_lambdas(self: Any, x: Any) -> Any:
    chain = [lambda y: y.sin(), lambda y: y + 1]
    for step in chain * 2:
        x = step(x)
    return sum(y.cos() for y in x.unbind(0))


@program
def one_line_many_operators(self: Any, x: Any) -> Any:
    return x + x * x - x / (x + 1) + x.sin().cos().tan() + torch.add(x, x, alpha=2).sum(-1, True)


@program
def annotated(self: Any, x: Any) -> Any:
    with fx_traceback.annotate({"stage": 1}):
        y = self.linear(x.sin())
        with fx_traceback.annotate({"deeper": "yes"}):
            y = y + y.cos()
    return y * 2


@program
def on_device(self: Any, x: Any) -> Any:
    with torch.device("cpu"):
        y = torch.ones(3, 4) + x
        z = y.view(4, 3) + x.reshape(4, 3) + torch.empty_like(y).fill_(1.0).view(4, 3)
    return z + 1, x.view(4, 3).sin()


@program
def fused(self: Any, x: Any) -> Any:
    y = nn.functional.layer_norm(x, (4,))
    q = y.view(1, 1, 3, 4)
    return nn.functional.scaled_dot_product_attention(q, q, q), nn.functional.gelu(y).softmax(-1)


@program
def without_functions_of_torch(self: Any, x: Any) -> Any:
    y = x.sin().view(4, 3).cos()
    with torch._C.DisableTorchFunction():
        z = (y + y.sin()).view(3, 4) + x.sin()
    return z.sin() + z.view(-1).sin().view(3, 4)


@program
def random(self: Any, x: Any) -> Any:
    return torch.rand(3, 4) + torch.randn_like(x) + x.bernoulli()


@program
def exponents(self: Any, x: Any) -> Any:
    return x**2, x ** float("inf"), x.clamp(min=-0.0), x.clamp(-float("inf"), 1), x % 2, 2 - x


@program
def indexed(self: Any, x: Any) -> Any:
    i = torch.tensor([0, 2])
    y = x.clone()
    y[i] = 0.0
    return x[i], x[..., None, 1:], x[:, [1, 3]], y.index_put((i,), x[:2]), x[-1, ::2]


@program
def gradients_inside(self: Any, x: Any) -> Any:
    def loss(y: Any) -> Any:
        return (self.linear(y).sin() * y.sin()).sum()

    a = torch.func.grad(loss)(x)
    return a, torch.func.vmap(torch.func.grad(lambda r: (r * r.sin()).sum()))(x)


@program
def forward_mode(self: Any, x: Any) -> Any:
    return torch.func.jvp(lambda y: y.sin() * y.cos(), (x,), (torch.ones_like(x),))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x.sin())
        return x.sin() * 2

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 2


@program
def own_function(self: Any, x: Any) -> Any:
    return Doubled.apply(self.linear(x)) + Doubled.apply(x)


@program
def checkpointed(self: Any, x: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda y: self.linear(y).sin(), x, use_reentrant=False) + 1


@program
def requires_gradients(self: Any, x: Any) -> Any:
    y = x.clone().requires_grad_()
    z = y.sin() + self.linear.weight.detach().sum()
    return z.detach(), z, self.linear.weight * 1, y.data.cos()


@program
def sparse(self: Any, x: Any) -> Any:
    return torch.sparse.mm(x.to_sparse(), torch.ones(4, 2)), x.to_sparse().to_dense()


@program
def compressed(self: Any, x: Any) -> Any:
    return x.to_sparse_csr() @ torch.ones(4, 2), x.to_sparse_csr().to_dense() + x.to_sparse_csc()


@program
def resized(self: Any, x: Any) -> Any:
    y = torch.empty(0)
    y.set_(x.clone().untyped_storage(), 1, (2, 2), (4, 1))
    z = x.clone()
    z.resize_(2, 2)
    return y + z, x.as_strided((2, 2), (1, 2), 1) + 1, x.diagonal() + x.real[:3, 0]


@program
def default_types(self: Any, x: Any) -> Any:
    y = torch.ones(3, 4) / 3 + torch.arange(4) / 2
    return y, torch.promote_types(x.dtype, torch.float64), x.double() + y, x.half() @ x.half().t()


@program
def attributes_of_tensors(self: Any, x: Any) -> Any:
    y = x.t().sin()
    if y.dim() != 2 or not y.is_floating_point() or y.is_contiguous() or y.stride() != (1, 4):
        return y
    return y.mT + x, y.T.contiguous(), y.size(0) * x, y.nelement()


@program
def sizes(self: Any, x: Any) -> Any:
    n = x.shape[0]
    y = self.linear(x).view(-1)
    return (
        y.reshape(n, 4) * n,
        torch.zeros(n * 2, x.size(1)),
        x[: n - 1],
        torch.cat([x, x]).sum(0),
        x.expand(2, n, 4).contiguous().view(2 * n, 4),
        x.numel() + n // 2,
        torch.arange(n),
    )


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Sequential(nn.Linear(4, 4), nn.GELU())]
        )

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return self.blocks[0](x)

"""Exports beside torch's: what one program each has that is special."""

from __future__ import annotations

import contextlib
import linecache
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.fx.traceback as fx_traceback
from torch import nn
from torch._export.serde.serialize import serialize
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, export, unflatten
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fxpress
from tests.support.programs import (
    Side,
    assert_exports_as_torch,
    assert_nothing_replaced,
    assert_same_program,
    exported_by_us,
    replaced_names,
)
from tests.support.versions import needs

SLOW = pytest.mark.slow("many exports")
BOTH = pytest.mark.parametrize(
    "strict",
    [
        pytest.param(False, id="nonstrict"),
        pytest.param(True, id="strict", marks=pytest.mark.slow("Dynamo traces each model twice")),
    ],
)
Forward = Callable[..., Any]


class Made(nn.Module):
    """Its forward is a function that gets the module."""

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
SLOW_ONES = {"branches", "loop", "scanned", "mapped", "vmapped", "gradients_inside", "forward_mode"}


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


@BOTH
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=SLOW if n in SLOW_ONES else ()) for n in sorted(FORWARDS)]
)
def test_program(name: str, strict: bool) -> None:
    assert_exports_as_torch(Made(FORWARDS[name]).train(), (torch.rand(3, 4) + 0.1,), strict=strict)


@SLOW
@BOTH
@pytest.mark.parametrize("name", ["one_line_many_operators", "branches", "several_outputs"])
def test_program_in_eval(name: str, strict: bool) -> None:
    model = Made(FORWARDS[name]).eval().requires_grad_(False)
    assert_exports_as_torch(model, (torch.rand(3, 4),), strict=strict)


# ---- dynamic shapes -----------------------------------------------------------------------------


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


SHAPES: dict[str, Any] = {
    "named": {0: Dim("batch", min=2, max=64)},
    "auto": {0: Dim.AUTO, 1: Dim.AUTO},
    "dynamic": {0: Dim.DYNAMIC},
    "static": {0: Dim.STATIC},
    "derived": {0: 2 * Dim("half", min=2, max=8)},
}


@BOTH
@pytest.mark.parametrize("kind", sorted(SHAPES))
def test_dynamic_shapes(kind: str, strict: bool) -> None:
    shapes = {"args": (SHAPES[kind],)}
    assert_exports_as_torch(Made(sizes), (torch.rand(6, 4),), strict=strict, dynamic_shapes=shapes)


@SLOW
@pytest.mark.parametrize(
    "name", ["of_data", "branches", "one_line_many_operators", "views_and_writes", "fused"]
)
def test_dynamic_programs(name: str) -> None:
    assert_exports_as_torch(
        Made(FORWARDS[name]), (torch.rand(3, 4) + 0.1,), dynamic_shapes={"args": ({0: Dim.AUTO},)}
    )


@needs("shapes_specs")
@BOTH
def test_shapes_specs(strict: bool) -> None:
    from torch.fx.experimental.dynamic_spec import ParamsSpec, ShapeVar, TensorSpec

    spec = ParamsSpec({"x": TensorSpec([ShapeVar("n"), None])})
    assert_exports_as_torch(Nested(), (torch.rand(6, 4),), strict=strict, dynamic_shapes=spec)


@BOTH
def test_deferred_asserts(strict: bool) -> None:
    assert_exports_as_torch(
        Made(sizes),
        (torch.rand(6, 4),),
        strict=strict,
        dynamic_shapes={"args": ({0: Dim("n")},)},
        prefer_deferred_runtime_asserts_over_guards=True,
    )


# ---- modules ------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, batch_first=True)
        self.twice = nn.Linear(5, 5)
        self.again = self.twice

    def forward(self, x: Any, *, scale: float = 2.0) -> Any:
        out, (h, c) = self.lstm(x)
        return self.again(self.twice(out)) * scale, h + c


@BOTH
def test_lstm_and_shared_module(strict: bool) -> None:
    assert_exports_as_torch(Recurrent(), (torch.rand(2, 3, 4),), {"scale": 0.5}, strict=strict)


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


@BOTH
def test_preserved_signatures(strict: bool) -> None:
    assert_exports_as_torch(
        Nested(),
        (torch.rand(2, 4),),
        strict=strict,
        preserve_module_call_signature=("blocks.0", "blocks.1.0"),
    )


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_inputs(layout: torch.layout) -> None:
    def forward(self: Any, x: Any) -> Any:
        return x.to_dense().sin() + 1, x @ torch.ones(4, 2), x

    x = torch.eye(3, 4).to_sparse(layout=layout)
    assert_exports_as_torch(Made(forward), (x,), runs=False)


@BOTH
def test_hooks(strict: bool) -> None:
    model = Nested()
    model.blocks[0].register_forward_hook(lambda m, a, out: out + 1)
    model.blocks[1].register_forward_pre_hook(lambda m, a: (a[0].sin(),))
    assert_exports_as_torch(model, (torch.rand(2, 4),), strict=strict)


def test_source_that_was_executed() -> None:
    source = "def forward(self, x):\n    y = x.sin()\n    return y + x.cos()\n"
    name = "<made at run time>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    for file in ("<string>", name, "/no/such/file.py"):
        space: dict[str, Any] = {}
        exec(compile(source, file, "exec"), space)
        cls = type("Executed", (nn.Module,), {"forward": space["forward"]})
        assert_exports_as_torch(cls(), (torch.rand(2),))


@SLOW
def test_graph_module() -> None:
    traced = torch.fx.symbolic_trace(Nested())
    assert_exports_as_torch(traced, (torch.rand(2, 4),))
    assert_exports_as_torch(traced, (torch.rand(2, 4),), strict=True)


@SLOW
def test_program_that_was_exported() -> None:
    model = export(Nested(), (torch.rand(2, 4),)).module()
    assert_exports_as_torch(model, (torch.rand(2, 4),))


# ---- custom operators ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library() -> Any:
    with torch.library._scoped_library("fxpress_export", "DEF") as made:
        for schema in (
            "plain(Tensor x, int n=2, *, float? s=None) -> Tensor",
            "several(Tensor x, Tensor[] more) -> (Tensor, Tensor)",
            "writes(Tensor(a!) x) -> ()",
            "fresh(Tensor x) -> Tensor",
            "late(Tensor x) -> Tensor",
            "nothing(Tensor x) -> ()",
            "number(Tensor x) -> int",
            "maybe(Tensor? x, str how) -> Tensor[]",
        ):
            made.define(schema)
        kernels: dict[str, Any] = {
            "plain": lambda x, n=2, s=None: x * n,
            "several": lambda x, more: (x + 1, x + 2),
            "writes": lambda x: x.add_(1) and None,
            "fresh": lambda x: x[x > 0].clone(),
            "late": lambda x: x.clone(),
            "nothing": lambda x: None,
            "number": lambda x: 3,
            "maybe": lambda x, how: [torch.ones(2)],
        }
        for name, kernel in kernels.items():
            made.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(
            "fxpress_export::fresh",
            lambda x: x.new_empty(torch.library.get_ctx().new_dynamic_size()),
            lib=made,
        )

        def late(x: Any) -> Any:
            torch.library.get_ctx().new_dynamic_size()  # nobody gets it
            return torch.empty_like(x)

        torch.library.register_fake("fxpress_export::late", late, lib=made)
        torch.library.register_fake(
            "fxpress_export::plain", lambda x, n=2, s=None: torch.empty_like(x), lib=made
        )
        yield torch.ops.fxpress_export


@BOTH
@pytest.mark.parametrize(
    "name", ["plain", "several", "writes", "fresh", "late", "nothing", "number", "maybe"]
)
def test_custom_operators(library: Any, name: str, strict: bool) -> None:
    calls: dict[str, Forward] = {
        "plain": lambda self, x: library.plain(x, 3, s=0.5) + library.plain(x),
        "several": lambda self, x: library.several(x, [x, x.sin()])[1] + 1,
        "writes": lambda self, x: (library.writes(y := x.clone()), y + 1)[1],
        "fresh": lambda self, x: library.fresh(x) + 1,
        "late": lambda self, x: library.late(x) + x.sin(),
        "nothing": lambda self, x: (library.nothing(x), x.sin())[1],
        "number": lambda self, x: x * library.number(x),
        "maybe": lambda self, x: library.maybe(None, "how")[0] + 1,
    }
    assert_exports_as_torch(Made(calls[name]), (torch.rand(2, 2),), strict=strict)


# ---- modes --------------------------------------------------------------------------------------


class Seen(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.names.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


class Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Seen, Dispatched])
@pytest.mark.parametrize("inside", [False, True])
def test_modes_of_the_user(mode: Any, inside: bool) -> None:
    seen: list[list[str]] = []

    def forward(self: Any, x: Any) -> Any:
        y = x.sin() + x
        with mode() if inside else contextlib.nullcontext() as active:
            y = y.view(4, 3) + self.linear(x).view(4, 3) + torch.ones(4, 3)
            if active is not None:
                seen.append(active.names)
        return y.sin() + y

    def way(*args: Any, **options: Any) -> Any:
        with contextlib.nullcontext() if inside else mode() as active:
            result = export(*args, **options)
        if active is not None:
            seen.append(active.names)
        return result

    assert_exports_as_torch(Made(forward), (torch.rand(3, 4),), way=way)
    assert_exports_as_torch(Made(forward), (torch.rand(3, 4),), way=way)
    assert seen[-1] == seen[-2]


@SLOW
@pytest.mark.parametrize(
    "context",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.device("cpu"),
        lambda: torch.device("meta"),
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.set_grad_enabled(True),
        lambda: fx_traceback.preserve_node_meta(),
        lambda: torch.fx.experimental._config.patch(soft_pending_unbacked_not_found_error=True),
        lambda: torch._functorch.config.patch(fake_tensor_propagate_real_tensors=True),
        lambda: torch._dynamo.config.patch(fake_tensor_cache_enabled=False),
        lambda: torch._dynamo.config.patch(fake_tensor_cache_crosscheck_enabled=True),
    ],
    ids=lambda f: getattr(f, "__name__", "f"),
)
@pytest.mark.parametrize("name", ["one_line_many_operators", "factories"])
def test_contexts(context: Any, name: str) -> None:
    def way(*args: Any, **options: Any) -> Any:
        with context():
            return export(*args, **options)

    assert_exports_as_torch(Made(FORWARDS[name]), (torch.rand(3, 4),), way=way, runs=False)


def test_default_device() -> None:
    torch.set_default_device("cpu")
    try:
        assert_exports_as_torch(Made(on_device), (torch.rand(3, 4),))
    finally:
        torch.set_default_device(None)


def test_fake_inputs() -> None:
    with FakeTensorMode(shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv()):
        model, x = Made(one_line_many_operators), torch.empty(3, 4)
    assert_exports_as_torch(model, (x,), runs=False)


def test_inference_tensors() -> None:
    with torch.inference_mode():
        x = torch.rand(3, 4)
    assert_exports_as_torch(Made(views_and_writes), (x,))


# ---- what forward does besides ------------------------------------------------------------------


@SLOW
def test_nested_export() -> None:
    inner: list[Any] = []

    def forward(self: Any, x: Any) -> Any:
        y = self.linear(x)
        inner.append(export(Nested(), (torch.rand(2, 4),)))
        return y.sin() + y.view(4, 3).sin().view(3, 4)

    assert_exports_as_torch(Made(forward), (torch.rand(3, 4),))


def test_make_fx_inside() -> None:
    codes: list[str] = []

    def forward(self: Any, x: Any) -> Any:
        traced = make_fx(lambda y: y.sin() + y)(torch.ones(2))
        codes.append(traced.code)
        graph = traced.graph
        node = next(n for n in graph.nodes if n.op == "call_function")
        node.target = torch.ops.aten.cos.default
        codes.append(traced.code)
        codes.append(traced.recompile().src)
        codes.append(traced.code)
        return x.sin() + 1

    assert_exports_as_torch(Made(forward), (torch.rand(3, 4),))
    half = len(codes) // 2
    assert codes[:half] == codes[half:]


def test_compile_inside() -> None:
    graphs: list[str] = []

    def backend(module: Any, inputs: Any) -> Any:
        graphs.append(module.code)
        return module.forward

    def forward(self: Any, x: Any) -> Any:
        return torch.compile(lambda y: y.sin() + 1, backend=backend)(x)

    assert_exports_as_torch(Made(forward), (torch.rand(3, 4),))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_error_in_forward(error: type[BaseException]) -> None:
    def forward(self: Any, x: Any) -> Any:
        raise error(f"here{x.sin().shape}")

    before = list(replaced_names())
    with pytest.raises(error, match="here"):
        exported_by_us(Made(forward), (torch.rand(3, 4),))
    assert_nothing_replaced(before)
    assert_exports_as_torch(Made(one_line_many_operators), (torch.rand(3, 4),))


def test_torch_is_as_it_was() -> None:
    before = list(replaced_names())
    exported_by_us(Made(one_line_many_operators), (torch.rand(3, 4),), strict=True)
    assert_nothing_replaced(before)


def test_other_threads_have_torchs_functions() -> None:
    """torch can export in one thread at a time; other threads do what they do without fxpress."""
    started, ended = threading.Event(), threading.Event()
    seen: list[Any] = []

    def other() -> None:
        started.wait(60)
        while not ended.is_set() or not seen:
            graph = torch.fx.Graph()
            graph.output(graph.placeholder("x"))
            module = torch.fx.GraphModule({}, graph)
            seen.append("_code" in vars(module))

    def forward(self: Any, x: Any) -> Any:
        started.set()
        return FORWARDS["one_line_many_operators"](self, x) + FORWARDS["fused"](self, x)[1]

    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert_exports_as_torch(Made(forward), (torch.rand(3, 4),))
    finally:
        ended.set()
        thread.join()
    assert all(seen)


@SLOW
def test_exports_in_several_threads() -> None:
    names = ["one_line_many_operators", "fused", "several_outputs", "factories"]
    models = [Made(FORWARDS[name]) for name in names]
    x = torch.rand(3, 4)
    theirs = [export(model, (x,)) for model in models]
    ours: dict[int, Any] = {}
    one = threading.Lock()  # torch can export in one thread at a time
    before = list(replaced_names())

    def run(index: int) -> None:
        with one:
            ours[index] = exported_by_us(models[index], (x,))

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, program in enumerate(theirs):
        assert_same_program(ours[index], program)
    assert_nothing_replaced(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fork_while_a_block_is_open() -> None:
    codes: list[int] = []

    def forward(self: Any, x: Any) -> Any:
        child = os.fork()
        if not child:
            graph = torch.fx.Graph()
            graph.output(graph.placeholder("x"))
            ok = torch.fx.GraphModule({}, graph)(3) == 3
            os._exit(0 if ok else 1)
        codes.append(os.waitpid(child, 0)[1])
        return x.sin()

    before = list(replaced_names())
    exported_by_us(Made(forward), (torch.rand(3, 4),))
    assert codes == [0]
    assert_nothing_replaced(before)


def test_fork_in_another_thread() -> None:
    """The child has no thread that is in a block: nothing of torch is replaced there."""
    inside, forked = threading.Event(), threading.Event()

    def forward(self: Any, x: Any) -> Any:
        inside.set()
        forked.wait(60)
        return x.sin()

    before = list(replaced_names())
    thread = threading.Thread(target=exported_by_us, args=(Made(forward), (torch.rand(3, 4),)))
    with fxpress.installed():
        thread.start()
        inside.wait(60)
        child = os.fork()
        if not child:
            same = all(a[2] is b[2] for a, b in zip(before, replaced_names(), strict=True))
            os._exit(0 if same else 1)
        status = os.waitpid(child, 0)[1]
        forked.set()
        thread.join()
    assert status == 0
    assert_nothing_replaced(before)


@SLOW
def test_draft_export() -> None:
    from torch.export import draft_export

    assert_exports_as_torch(Made(of_data), (torch.rand(3, 4) + 0.1,), way=draft_export)


@SLOW
@pytest.mark.parametrize("name", ["one_line_many_operators", "branches"])
def test_programs_as_bytes(name: str) -> None:
    x = torch.rand(3, 4)
    texts = []
    for way in (export, exported_by_us):
        program = way(Made(FORWARDS[name]).eval().requires_grad_(False), (x,))
        texts.append(str(program.run_decompositions()))
        texts.append(str(unflatten(program).graph))
        texts.append(serialize(program).exported_program.decode())
    ours, theirs = texts[3:], texts[:3]
    assert Side().described(ours) == Side().described(theirs)


@SLOW
def test_logs(caplog: pytest.LogCaptureFixture) -> None:
    texts: list[list[str]] = []

    def way(*args: Any, **options: Any) -> Any:
        handler = logging.Handler()
        lines: list[str] = []
        handler.emit = lambda r: lines.append(r.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("torch.fx.experimental.proxy_tensor")
        logger.addHandler(handler)
        level = logger.level
        torch._logging.set_logs(graph_code=True, export=logging.INFO)
        try:
            return export(*args, **options)
        finally:
            torch._logging.set_logs()
            logger.removeHandler(handler)
            logger.setLevel(level)
            texts.append(lines)

    assert_exports_as_torch(Made(branches), (torch.rand(3, 4),), way=way)
    assert texts[0] == texts[1]

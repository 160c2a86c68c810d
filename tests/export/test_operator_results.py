"""Non-strict exports create results of repeated operators; programs and tensors equal torch's."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import fxpress
from fxpress._graphs.trace import operator_results
from tests.export.test_captured_calls import FUNCTIONS, SYMBOLIC
from tests.support.programs import assert_exports_as_torch

TIMES = 4  # torch computes the first result, fxpress records the second and repeats the others


def _facts(value: Any) -> Any:
    """Properties of a tensor that a user's code can read while the program is traced."""
    if not isinstance(value, Tensor):
        return value
    base = value._base
    return (
        *(value.requires_grad, value.is_leaf, value.grad_fn is None, value._is_view()),
        None if value.is_inference() else value._version,
        None if base is None else (tuple(map(str, base.shape)), base.requires_grad),
        str(value.shape),
        str(value.stride()),
    )


class _Repeats(nn.Module):
    """Calls a function several times with equivalent tensors, and notes facts of its results."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(4, 4)) for _ in range(TIMES)])
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(4)) for _ in range(TIMES)])

    def forward(self, x: Tensor) -> list[Any]:
        made = []
        for weight, scale in zip(self.weights, self.scales, strict=True):
            made.append(self.function(x, weight, scale))
            leaves = torch.utils._pytree.tree_leaves(made[-1])
            NOTED.append([_facts(each) for each in leaves])
            NOTED.append(
                [
                    a.untyped_storage()._cdata == b.untyped_storage()._cdata
                    for a in leaves
                    for b in (*leaves, x, weight)
                    if isinstance(a, Tensor) and isinstance(b, Tensor) and not a.is_sparse
                ]
            )
        return made


NOTED: list[Any] = []


@pytest.fixture
def repeated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The operators whose results fxpress created."""
    operators: list[Any] = []
    repeat = operator_results.OperatorResults._repeat

    def counted(self: Any, known: Any, call: Any) -> Any:
        operators.append(known.owner[0])
        return repeat(self, known, call)

    monkeypatch.setattr(operator_results.OperatorResults, "_repeat", counted)
    return operators


def _check(function: Callable[..., Any], shape: Any = (3, 4), **options: Any) -> None:
    model = _Repeats(function)
    for is_cold, has_gradients in itertools.product((True, False), (True, False)):
        NOTED.clear()
        if is_cold:
            FakeTensorMode.cache_clear()
        with torch.set_grad_enabled(has_gradients):
            example = (torch.randn(shape),)
            assert_exports_as_torch(model, example, strict=False, runs=False, **options)
        half = len(NOTED) // 2
        assert NOTED[:half] == NOTED[half:]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_static_sizes(name: str, repeated: list[Any]) -> None:
    _check(FUNCTIONS[name][1])
    assert repeated or name not in ("linear", "layer norm", "items", "constants")


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_sizes(name: str) -> None:
    _check(SYMBOLIC[name][1], dynamic_shapes=({0: torch.export.Dim.AUTO},))


def _written_view(x: Any, w: Any, s: Any) -> Any:
    y = torch.zeros_like(w)
    view = y.view(2, 8)[1:]
    row = view[0]
    row.mul_(s.sum())  # `y` and the views require gradients from here on
    return y, view, row, y + 1, view.t()


def _written_results(x: Any, w: Any, s: Any) -> Any:
    y = F.linear(x, w, s)
    z = F.linear(x[None], w, s)  # a view of a new tensor
    u = y * 2
    u.add_(1)
    z.relu_()
    return u, z, u.view(-1), z + 1, y.t().contiguous().mul_(2)


def _without_gradients(x: Any, w: Any, s: Any) -> Any:
    with torch.no_grad():
        view = w.view(-1)
        y = w * 2
    with torch.inference_mode():
        z = x * 2
    return view, y, z * 1, y.requires_grad_(), view.detach(), w.detach()[0], y + 1


def _views_of_views(x: Any, w: Any, s: Any) -> Any:
    a, b = w.chunk(2)
    c = w.transpose(0, 1)[1:].unsqueeze(0).expand(2, 3, 4)
    return a, b, c, c.reshape(-1), w.split([1, 3]), w.unbind(), w.view(16), w.diagonal(), a.t()


def _results_of_several(x: Any, w: Any, s: Any) -> Any:
    return w.max(0), w.topk(2), w.sort(), torch.std_mean(w), F.scaled_dot_product_attention(w, w, w)


def _same_tensor(x: Any, w: Any, s: Any) -> Any:
    y = w.contiguous()
    return w.to(torch.float32), w.expand(4, 4), w.view(4, 4), w * w, w * w.t(), y is w


def _changed_metadata(x: Any, w: Any, s: Any) -> Any:
    y = w * 1
    before = y + 1
    y.t_()
    after = y + 1
    y.unsqueeze_(0)
    return before, after, y + 1, y.resize_(2, 2) + 1


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 2 * ctx.saved_tensors[0]


def _saved(x: Any, w: Any, s: Any) -> Any:
    packed: list[Any] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = (w * s).sin()
    return y, len(packed)


def _dual(x: Any, w: Any, s: Any) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(w.detach(), torch.ones(4, 4))
        return forward_ad.unpack_dual(dual * 2).tangent


class _Doubling(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if func is torch.ops.aten.mul.Tensor else result


def _in_a_mode(x: Any, w: Any, s: Any) -> Any:
    with _Doubling():
        y = w * 2
    return y, w * 2


def _unbound(x: Any, w: Any, s: Any) -> Any:
    """Writes to a view that may be written only if it is not one of several views."""
    y = w * 2
    if len(NOTED) % (2 * TIMES) < 6:
        return y.unsqueeze(0).unbind(0)[0].view(16)
    return y.view(16).mul_(2)


def _resized(x: Any, w: Any, s: Any) -> Any:
    y = w.detach() * 2
    if len(NOTED) % (2 * TIMES) < 4:
        y.untyped_storage().resize_(0)
    return y


def _by_other_kernels(x: Any, w: Any, s: Any) -> Any:
    q = w.view(1, 2, 4, 2)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        first = F.scaled_dot_product_attention(q, q, q)
    return first, F.scaled_dot_product_attention(q, q, q)


UNUSUAL: dict[str, Callable[..., Any]] = {
    "written view": _written_view,
    "written results": _written_results,
    "without gradients": _without_gradients,
    "views of views": _views_of_views,
    "results of several tensors": _results_of_several,
    "same tensor": _same_tensor,
    "changed metadata": _changed_metadata,
    "custom gradients": lambda x, w, s: _Square.apply(w) + w,
    "hooks for saved tensors": _saved,
    "checkpoint": lambda x, w, s: checkpoint(lambda a: (a * s).sin(), w, use_reentrant=False),
    "vmap": lambda x, w, s: torch.func.vmap(lambda a: a * s + 1)(w),
    "dual": _dual,
    "mode": _in_a_mode,
    "hook": lambda x, w, s: ((w * 2).register_hook(lambda grad: grad) is None, w * 2),
    "dtypes": lambda x, w, s: (w.double() * 2, w.half() * 2, w.to(torch.bfloat16), w.int() // 2),
    "complex": lambda x, w, s: (torch.view_as_real(torch.complex(w, w).conj() * 2), w.mH),
    "numbers": lambda x, w, s: (w * 2, w * 2.0, w * True, w * -0.0, w * 0.0, w + float("nan")),
    "default dtype": lambda x, w, s: (w > 0) * 1.5,
    "keywords": lambda x, w, s: (
        *(torch.ops.aten.view.default(w, size=[16]), torch.ops.aten.t.default(self=w) + 1),
        *(torch.addmm(input=s, mat1=x, mat2=w), torch.cat(tensors=[w, x])),
    ),
    "data": lambda x, w, s: w.data * 2,
    "detached": lambda x, w, s: (w.detach().mul_(2), w.detach(), w + 1),
    "unbound": _unbound,
    "resized": _resized,
    "other kernels": _by_other_kernels,
    "grid of views": lambda x, w, s: torch.meshgrid(w[0] * 1, w.detach()[0], indexing="ij"),
    "replayed views": lambda x, w, s: ((w * 1).view(16)[3:7].mul_(2) + 1, w.t().grad_fn is None),
    "norms": lambda x, w, s: F.batch_norm(w, s.detach() * 1, s.detach() + 1, training=True),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_code(name: str) -> None:
    _check(UNUSUAL[name])


@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_code_with_symbolic_sizes(name: str) -> None:
    def function(x: Any, w: Any, s: Any) -> Any:
        return UNUSUAL[name](x, x @ w[:, :4], s)

    _check(function, (4, 4), dynamic_shapes=({0: torch.export.Dim.AUTO},))


def test_the_graph_of_autograd_has_all_calls() -> None:
    def function(x: Any, w: Any, s: Any) -> Any:
        y = F.linear(x, w, s).sin()
        return torch.autograd.grad((y * y).sum(), w)[0], y.grad_fn._saved_self

    assert_exports_as_torch(_Repeats(function), (torch.randn(3, 4),), strict=False, runs=False)


def test_counts_of_torchs_cache() -> None:
    model = _Repeats(lambda x, w, s: F.layer_norm(F.linear(x, w, s).view(-1), (12,)).view(3, 4))
    counts = []
    for block in (fxpress.installed, contextlib.nullcontext):
        FakeTensorMode.cache_clear()
        with block(), torch.no_grad():
            torch.export.export(model, (torch.randn(3, 4),), strict=False)
        counts.append((FakeTensorMode.cache_hits, FakeTensorMode.cache_misses))
    assert counts[0] == counts[1]

"""Keys of torch's cache of fake tensors that fxpress keeps equal the keys that torch computes."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import fxpress
from fxpress._graphs.trace import cache_keys
from fxpress._torch.fakes import call_digest

MODE = FakeTensorMode()


def _fake(*sizes: int, **options: Any) -> Any:
    with MODE:
        return torch.empty(*sizes, **options)


def _view(function: Any, **options: Any) -> Any:
    with MODE:
        return function(torch.empty(4, 6, **options))


DISTINCT: list[Any] = [
    *(1, 1.0, True, "1", None, 0.0, -0.0, 2**62, [1], (1,), torch.Size([1]), [[1]], [1, 1]),
    *(torch.float32, torch.float64, torch.strided, torch.contiguous_format),
    *(torch.device("cpu"), torch.device("meta"), torch.device("cuda", 0), torch.device("cuda", 1)),
    *(_fake(2), _fake(2, 1), _fake(1, 2), _fake(2, dtype=torch.int32), _fake(2, device="meta")),
    *(_fake(2, requires_grad=True), _fake(2, 1, 1).to(memory_format=torch.contiguous_format)),
    *(_view(lambda x: x.t()), _view(lambda x: x[1]), _view(lambda x: x[2]), _view(lambda x: x)),
    _view(lambda x: x.clone()[0]),
    _view(lambda x: x.conj(), dtype=torch.complex64),
    _view(lambda x: x.conj().imag, dtype=torch.complex64),
]
UNKNOWN: list[Any] = [
    *(1j, float("nan"), 2**70, torch.ones(2), object(), torch.Generator(), torch.device("cuda")),
    *(FakeTensorMode().from_tensor(torch.ones(2)), slice(1), b"1", {1}, "\ud800"),
]


def _digest(*args: Any, **kwargs: Any) -> bytes | None:
    return call_digest(MODE, FakeTensor, args, kwargs)


def test_different_arguments_have_different_digests() -> None:
    digests = [_digest(value) for value in DISTINCT]
    assert all(digests)
    for (a, first), (b, second) in itertools.combinations(zip(DISTINCT, digests, strict=True), 2):
        assert first != second, (a, b)
    assert _digest(1, 2) != _digest(1, x=2) != _digest(1, y=2)
    assert _digest([1, [2]], 3) != _digest([1, [2, 3]])


def test_equal_arguments_have_equal_digests() -> None:
    for make in (lambda: _fake(2, 3), lambda: (1, [2.5, "a"]), lambda: _view(lambda x: x.t())):
        assert _digest(make(), k=make()) == _digest(make(), k=make())


@pytest.mark.parametrize("value", UNKNOWN, ids=lambda value: type(value).__name__)
def test_other_arguments_have_no_digest(value: Any) -> None:
    for args in ((value,), ([1, value],)):
        assert _digest(*args) is None
    assert _digest(k=value) is None


def test_symbolic_sizes_have_no_digest() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    symbolic = mode.from_tensor(torch.ones(3, 4))
    assert call_digest(mode, FakeTensor, (symbolic,), {}) is None
    assert call_digest(mode, FakeTensor, (symbolic.shape[0],), {}) is None
    with mode:
        item = symbolic[0, :2]  # fixed sizes in a storage with a symbolic size
    assert not item._has_symbolic_sizes_strides
    assert call_digest(mode, FakeTensor, (item,), {}) is None


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(8, 2, 16) for _ in range(2))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor, n: int) -> Any:
        for layer in self.layers:
            x = layer(x)
        with torch.no_grad():
            y = self.norm(x).double()
        return F.pad(y, (n, 1)), x.topk(2), torch.full((n, 2), 0.5, dtype=torch.float16), x[..., n:]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_keys_equal_torchs(strict: bool, is_dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    find = cache_keys.CacheKeys.find
    kept = []

    def compared(self: Any, original: Any, mode: Any, state: Any, *call: Any) -> Any:
        computed: list[Any] = []

        def compute(*args: Any) -> Any:
            computed.append(original(*args))
            return computed[-1]

        found = find(self, compute, mode, state, *call)
        if not computed:
            kept.append(found)
            assert found == original(mode, state, *call)
        return found

    monkeypatch.setattr(cache_keys.CacheKeys, "find", compared)
    sizes = ({0: torch.export.Dim.AUTO}, None) if is_dynamic else None
    with fxpress.installed():
        torch.export.export(
            _Model(), (torch.randn(5, 3, 8), 2), dynamic_shapes=sizes, strict=strict
        )
    assert kept


def test_keys_contain_the_state_of_the_thread() -> None:
    keys = cache_keys.CacheKeys()
    x = _fake(2)
    made: list[Any] = []

    def original(*args: Any) -> Any:
        made.append(args)
        return len(made)

    def find() -> Any:
        return keys.find(original, MODE, None, torch.ops.aten.add.Tensor, (x, 1), {})

    plain = find()
    with torch.inference_mode():
        assert find() != plain
    torch.set_default_dtype(torch.float64)
    try:
        assert find() != plain
    finally:
        torch.set_default_dtype(torch.float32)
    assert find() == plain

"""Fake tensors that are made like another one, as torch makes them."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fxpress._torch import aten
from tests.support.memory import check_no_object_leaks

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_address = _pointer(aten.extension.fake_like, b"fxpress.fake_like.2")
assert _address is not None
_object, _flag = ctypes.py_object, ctypes.c_bool
_in_storage = ctypes.PYFUNCTYPE(_object, _object, _object, _flag)(_address)
_in_new_storage = ctypes.PYFUNCTYPE(_object, _object, ctypes.c_void_p, _flag)(_address)


def fake_like(fake: FakeTensor, storage: Any = None, *, protects: bool = False) -> Any:
    make, place = (_in_new_storage, None) if storage is None else (_in_storage, storage)
    made = make(fake, place, protects)
    vars(made).update(vars(fake))
    return made


def _facts(fake: Any) -> dict[str, Any]:
    return {
        "class": type(fake),
        "keys": str(torch._C._dispatch_keys(fake)),
        "place": (fake.shape, fake.stride(), fake.storage_offset(), fake.dtype, fake.device),
        "bytes": fake.untyped_storage().nbytes(),
        "grad": (fake.requires_grad, fake.is_leaf, fake.grad_fn, fake.grad),
        "flags": (fake.is_inference(), fake._is_view(), fake.is_conj(), fake.is_neg()),
        "attributes": vars(fake),
    }


@pytest.fixture(name="mode")
def _mode() -> FakeTensorMode:
    return FakeTensorMode()


_REAL = {
    "plain": lambda: torch.randn(2, 3),
    "scalar": lambda: torch.tensor(1.5),
    "empty": lambda: torch.empty(0, 4, dtype=torch.int8),
    "strided": lambda: torch.empty_strided((2, 3), (1, 2), dtype=torch.float64),
    "requires gradients": lambda: torch.randn(3, requires_grad=True),
    "complex": lambda: torch.randn(3, dtype=torch.complex64),
}


@pytest.mark.parametrize("case", _REAL)
def test_equal_to_torchs(case: str, mode: FakeTensorMode) -> None:
    fake, other = (mode.from_tensor(_REAL[case]()) for _ in range(2))
    made = fake_like(fake)
    assert _facts(made) == _facts(other)
    assert made.untyped_storage()._cdata != fake.untyped_storage()._cdata
    with mode:
        assert _facts(made + 1)["place"] == _facts(other + 1)["place"]


def test_in_a_storage(mode: FakeTensorMode) -> None:
    base = mode.from_tensor(torch.randn(4, 4))
    with mode:
        view = base[1:]
    made = fake_like(view, base.untyped_storage())
    assert made.untyped_storage()._cdata == base.untyped_storage()._cdata
    assert _facts(made)["place"] == _facts(view)["place"]


def test_data_are_protected(mode: FakeTensorMode) -> None:
    fake = mode.from_tensor(torch.randn(3))
    assert fake_like(fake).data_ptr() == 0
    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        fake_like(fake, protects=True).data_ptr()


def test_no_mode_is_asked(mode: FakeTensorMode) -> None:
    fake = mode.from_tensor(torch.randn(3))

    class Refuse(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, *_: Any) -> Any:
            raise AssertionError(function)

    with Refuse():
        made = fake_like(fake)
    assert _facts(made) == _facts(mode.from_tensor(torch.randn(3)))


@pytest.mark.parametrize("storage", [1, "text", torch.ones(1), torch.UntypedStorage])
def test_no_storage(storage: Any, mode: FakeTensorMode) -> None:
    fake = mode.from_tensor(torch.randn(3))
    with pytest.raises(RuntimeError, match="not a storage"):
        fake_like(fake, storage)


def test_no_objects_leak(mode: FakeTensorMode) -> None:
    fake = mode.from_tensor(torch.randn(3))
    storage = fake.untyped_storage()

    def call() -> None:
        fake_like(fake)
        fake_like(fake, storage)
        with pytest.raises(RuntimeError, match="not a storage"):
            fake_like(fake, 1)

    check_no_object_leaks(call)

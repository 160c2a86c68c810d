"""Tensors that are views of bytes, and tensors that replace others in autograd's graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from fxpress._torch import aten

SIXTEEN_BYTES = 16


def view(
    dtype: Any = torch.float32,
    sizes: tuple[int, ...] = (2, 2),
    strides: tuple[int, ...] = (2, 1),
    offset: int = 0,
    grad: bool = False,
) -> torch.Tensor:
    """The only view of a storage, which is called w."""
    memory = torch.arange(SIXTEEN_BYTES, dtype=torch.uint8)
    facts = (0, "w", dtype, list(sizes), list(strides), offset, grad, False)
    (made,) = aten.make_views([memory], [facts])
    assert made.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int8, torch.complex64])
@pytest.mark.parametrize(
    ("sizes", "strides", "offset"),
    [((2,), (1,), 0), ((), (), 1), ((0, 9), (9, 1), 0), ((1,), (7,), 1)],
)
def test_views_are_those_of_as_strided(
    dtype: torch.dtype, sizes: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    made = view(dtype, sizes, strides, offset)
    expected = torch.arange(SIXTEEN_BYTES, dtype=torch.uint8).view(dtype)
    expected = expected.as_strided(sizes, strides, offset)
    torch.testing.assert_close(made, expected, rtol=0, atol=0, equal_nan=True)
    assert (made.dtype, made.stride()) == (dtype, strides)
    assert made.storage_offset() == offset


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.uint8])
def test_gradients_are_for_numbers_with_a_fraction(dtype: torch.dtype) -> None:
    with pytest.raises(RuntimeError):
        torch.ones(2, dtype=dtype, requires_grad=True)
    with pytest.raises(ValueError, match="a tensor of w cannot require gradients"):
        view(dtype, (2,), (1,), grad=True)
    assert view(torch.float16, grad=True).requires_grad
    assert view(torch.complex64, (2,), (1,), grad=True).requires_grad


@pytest.mark.parametrize(
    ("facts", "match"),
    [
        ({"sizes": (2, 3), "strides": (3, 1)}, "larger than its storage"),
        ({"sizes": (5,), "strides": (1,)}, "larger than its storage"),
        ({"offset": 1}, "larger than its storage"),
        ({"sizes": (2,)}, "does not have as many strides"),
        ({"sizes": (-2,), "strides": (1,)}, "negative"),
        ({"sizes": (2,), "strides": (-1,)}, "negative"),
        ({"offset": -1}, "out of range"),
        ({"sizes": (2**62, 2**62), "strides": (2**62, 1)}, "out of range"),
    ],
)
def test_views_beyond_the_bytes(facts: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        view(**facts)


def test_a_view_of_no_dtype() -> None:
    with pytest.raises(TypeError, match=r"expected a torch\.dtype"):
        view("float32")


@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_place_of_a_leaf(requires_grad: bool) -> None:
    made = torch.ones(2)
    aten.share_gradient_edge(made, torch.zeros(2, requires_grad=requires_grad))
    assert made.is_leaf
    assert made.requires_grad == requires_grad
    assert made.grad_fn is None


@pytest.mark.parametrize("index", [0, 1])
def test_the_place_of_a_result(index: int) -> None:
    """Gradients flow to the base of the other view."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    result = (x * 2).unbind()[index]
    made = torch.tensor(0.0)
    aten.share_gradient_edge(made, result)
    assert made.grad_fn is result.grad_fn
    assert made.output_nr == result.output_nr
    made.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0 * (i == index) for i in range(4)]


# ---- tensors like others, on other storages ------------------------------------------------------


class Subclass(torch.Tensor):
    pass


def test_numbers_of_storages() -> None:
    whole = torch.arange(6.0)
    values = [
        whole,
        torch.ones(2),
        whole[2:],
        torch.ones(3).as_subclass(Subclass),
        torch.eye(2).to_sparse(),
        torch.nn.Parameter(whole.view(2, 3)),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.empty(2, device="meta"),
        "no tensor",
    ]
    assert aten.storage_numbers(values) == [0, 1, 0, -1, -1, 0, -1, 2, -1]
    cpu = torch.device("cpu")
    assert aten.storage_numbers(values, cpu) == [-1, -1, -1, -1, -1, -1, -1, 0, -1]
    assert aten.storage_numbers([]) == []


def test_storages_of_tensors_that_are_more_than_views() -> None:
    values = [
        torch.ones(3).as_subclass(Subclass),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.complex(torch.ones(2), torch.ones(2)).conj().imag,  # negated when it is read
    ]
    for value, made in zip(values, aten.storages_of(values), strict=True):
        assert type(made) is torch.Tensor
        assert made.dtype == torch.uint8
        assert not made.is_conj()
        assert not made.is_neg()
        assert made.untyped_storage().data_ptr() == value.untyped_storage().data_ptr()
        assert made.numel() == value.untyped_storage().nbytes()
        assert (made.clone() == made).all()
    fake = FakeTensorMode().from_tensor(torch.ones(4))
    with pytest.raises(RuntimeError, match="set the storage"):
        aten.storages_of([fake])


def test_views_like_others() -> None:
    whole = torch.arange(6.0)
    frozen = torch.nn.Parameter(whole[1:3], requires_grad=False)
    values = [whole, whole[::2], frozen, whole.view(3, 2).t(), torch.ones(1, requires_grad=True)]
    values += [whole]
    numbers = aten.storage_numbers(values)
    first = [values[numbers.index(n)] for n in range(max(numbers) + 1)]
    copies = [memory.clone() for memory in aten.storages_of(first)]
    made = aten.views_like(values, numbers, copies)
    assert made[0] is made[5]
    for mine, value in zip(made, values, strict=True):
        assert torch.equal(mine, value)
        assert type(mine) is type(value)
        assert mine.stride() == value.stride()
        assert mine.storage_offset() == value.storage_offset()
        assert mine.requires_grad == value.requires_grad
        assert mine.is_leaf
    made[0].detach()[0] = 7
    assert made[1][0] == 7
    assert whole[0] == 0


def test_views_like_others_refuse_what_does_not_fit() -> None:
    whole = torch.arange(6.0)
    small = torch.zeros(23, dtype=torch.uint8)
    with pytest.raises(ValueError, match="smaller than"):
        aten.views_like([whole], [0], [small])
    with pytest.raises(ValueError, match="expected a storage number for each of 1 values, got 2"):
        aten.views_like([whole], [0, 0], [small])
    with pytest.raises(IndexError):
        aten.views_like([whole], [1], [small])
    conjugated = torch.ones(1, dtype=torch.complex64).conj()
    for value in ("no tensor", torch.eye(2).to_sparse(), whole.as_subclass(Subclass), conjugated):
        with pytest.raises(TypeError, match="expected a plain tensor"):
            aten.views_like([value], [0], [torch.zeros(99, dtype=torch.uint8)])
    assert aten.views_like([whole, "no tensor"], [-1, -1], []) == [None, None]


def test_allocated_bytes() -> None:
    sizes = [5, 0, 1 << 22, 64]
    for device in ("cpu", "meta"):
        made, addresses = aten.allocate_bytes(sizes, torch.device(device))
        assert [each.numel() for each in made] == sizes
        assert {each.dtype for each in made} == {torch.uint8}
        assert {each.device.type for each in made} == {device}
        assert [each.untyped_storage().data_ptr() for each in made] == addresses
        assert all(each.untyped_storage().resizable() for each in made)
    with pytest.raises(RuntimeError, match="negative"):
        aten.allocate_bytes([4, -1], torch.device("cpu"))


def test_nothing_leaks_from_views_like_others() -> None:
    values = [torch.ones(4) for _ in range(100)]
    numbers = aten.storage_numbers(values)

    def uses() -> list[int]:
        return [torch._C._storage_Use_Count(v.untyped_storage()._cdata) for v in values]

    before = uses()
    for _ in range(50):
        made = aten.views_like(values, numbers, aten.storages_of(values))
    assert uses() > before
    del made
    assert uses() == before

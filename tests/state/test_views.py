"""Tensors over bytes, and tensors that take the place of others in autograd's graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fxpress import _aten

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
    (made,) = _aten.make_views([memory], [facts])
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
        ({"sizes": (2,)}, "not as many strides"),
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
    with pytest.raises(TypeError, match="needs a dtype"):
        view("float32")


@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_place_of_a_leaf(requires_grad: bool) -> None:
    made = torch.ones(2)
    _aten.share_gradient_edge(made, torch.zeros(2, requires_grad=requires_grad))
    assert made.is_leaf
    assert made.requires_grad == requires_grad
    assert made.grad_fn is None


@pytest.mark.parametrize("index", [0, 1])
def test_the_place_of_a_result(index: int) -> None:
    """Gradients go where those of the other one would."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
    result = (x * 2).unbind()[index]
    made = torch.tensor(0.0)
    _aten.share_gradient_edge(made, result)
    assert made.grad_fn is result.grad_fn
    assert made.output_nr == result.output_nr
    made.backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0 * (i == index) for i in range(4)]

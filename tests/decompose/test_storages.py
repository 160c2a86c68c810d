"""Storages of tensors: torch's come from the cache of fake tensors, which its first run fills."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import export
from torch.nn import functional

from fxpress import decompose
from tests.support.decompose_cases import assert_fresh_as_torch


class Views(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def permuted(x: Tensor) -> Tensor:
    """Returns a view of the input, which the schema does not declare."""
    return torch.einsum("ij->ji", x)


CASES: dict[str, Callable[[Tensor], Any]] = {
    "permuted": lambda x: permuted(x[0]),
    "same": lambda x: torch.einsum("bij->bij", x),
    "with_offset": lambda x: (permuted(x[1]).t().sin(), x[1:].contiguous().contiguous()),
    "twice": lambda x: permuted(permuted(x[1])),
    "in_a_row": lambda x: (
        permuted(x[1]),
        permuted(x[1]).reshape(12),
        x.transpose(0, 1).reshape(24),
    ),
    "attention": lambda x: (
        functional.scaled_dot_product_attention(x, x, x).transpose(0, 1).flatten()
    ),
    "parts": lambda x: [part.reshape(2, 3, 2, 1).flatten(1) for part in x.chunk(2, -1)],
    "views": lambda x: (
        x.expand_as(x),
        functional.dropout(x, 0.5, False),
        x.squeeze().mT,
        x.ravel(),
    ),
}


def assert_as_torch(case: str, table: str) -> None:
    inputs = (torch.randn(2, 3, 4),)
    decompose.forget_templates()
    assert_fresh_as_torch(lambda: export(Views(CASES[case]), inputs, strict=False), table)


def test_a_view_whose_schema_does_not_say_so() -> None:
    assert_as_torch("permuted", "empty")


@pytest.mark.slow("torch decomposes the programs")
@pytest.mark.parametrize("case", CASES)
def test_views(case: str) -> None:
    assert_as_torch(case, "empty")


@pytest.mark.slow("torch decomposes the program")
def test_without_the_cache() -> None:
    """Templates that were traced with a cache are not used for programs without one."""
    inputs = (torch.randn(2, 3, 4),)

    def exported() -> torch.export.ExportedProgram:
        return export(Views(CASES["permuted"]), inputs, strict=False)

    assert_fresh_as_torch(exported, "empty")
    with torch._dynamo.config.patch(fake_tensor_cache_enabled=False):
        assert_fresh_as_torch(exported, "empty")


@pytest.mark.slow("torch decomposes the program")
def test_checks_begin_with_the_same_cache() -> None:
    decompose.forget_templates()
    program = export(Views(CASES["permuted"]), (torch.randn(2, 3, 4),), strict=False)
    with decompose.check_templates():
        decompose.run_decompositions(program, {})

"""The signature of an unflattened module's `forward`."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.export import export

from fxpress.unflatten import unflatten
from tests.support.unflatten_compare import assert_runs_as_eager


class Anything(nn.Module):
    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        result = torch.zeros(2)
        for i, value in enumerate((*args, *kwargs.values())):
            result = result + (i + 1) * value
        return result


@pytest.mark.parametrize("name", ["args_0", "args_1", "arg_0", "a-b", "kwargs", "y"])
def test_keywords_that_are_no_names_of_their_own(name: str) -> None:
    """Names that positional arguments have already, and names that no parameter can have."""
    model = Anything()
    args, kwargs = (torch.randn(2), torch.randn(2)), {name: torch.randn(2), "z": torch.randn(2)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # export warns about such names
        ours = unflatten(export(model, args, kwargs, strict=False))
    assert_runs_as_eager(ours, model, args, kwargs)
    again = copy.deepcopy(ours)
    assert_runs_as_eager(again, model, args, kwargs)
    with pytest.raises(ValueError, match="other"):
        ours(*args, other=torch.randn(2), **kwargs)


@pytest.mark.parametrize("name", ["args_0", "a-b", "y"])
def test_export_again_with_such_keywords(name: str) -> None:
    model = Anything()
    args, kwargs = (torch.randn(2), torch.randn(2)), {name: torch.randn(2)}
    ours = unflatten(export(model, args, kwargs, strict=False))
    again = unflatten(export(ours, args, kwargs, strict=False))
    assert_runs_as_eager(again, model, args, kwargs)

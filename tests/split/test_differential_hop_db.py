"""Split against torch on the higher-order operators of torch's hop_db."""

from __future__ import annotations

import pytest
import torch
from torch.export import export
from torch.testing._internal.hop_db import hop_db

from tests.support.exported import operator_samples, skipped_unless_exported
from tests.support.split_cases import assert_split_as_torch, consecutive, levels

CASES = {info.name: info for info in hop_db}


class Call(torch.nn.Module):
    """Calls the operator between two other ones, so that there is something to cut."""

    def __init__(self, op: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        super().__init__()
        self.op = op
        self.rest = (args, kwargs)

    def forward(self, x: torch.Tensor) -> object:
        args, kwargs = self.rest
        result = self.op(x.sin().cos(), *args, **kwargs)
        return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.neg().exp(), result)


@pytest.mark.parametrize("name", sorted(CASES))
def test_hop_db(name: str) -> None:
    info = CASES[name]
    with skipped_unless_exported():
        sample = next(operator_samples(info, torch.float32))
        model = Call(info.op, sample.args, sample.kwargs)
        program = export(model, (sample.input,), strict=False)
    module = program.module()
    for callback in (consecutive(module.graph, 1), levels(module.graph, 3, seed=1)):
        split = assert_split_as_torch(module, callback.__getitem__)
        assert split is not None
        assert_split_as_torch(module, callback.__getitem__, keep_original_order=True)

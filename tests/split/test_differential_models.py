"""Split against torch on real architectures, and the split against the model."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers")

from tests.support.exported import architectures, transformer
from tests.support.split_cases import assert_split_as_torch, consecutive, levels


@pytest.mark.parametrize("name", architectures())
def test_split_of_a_transformer(name: str) -> None:
    module, inputs = transformer(name)
    expected = torch.utils._pytree.tree_leaves(module(*inputs))
    codegen = module.graph._codegen
    for callback in (consecutive(module.graph, 23), levels(module.graph, 6, seed=3)):
        for options in ({}, {"keep_original_order": True}, {"keep_original_node_name": True}):
            split = assert_split_as_torch(module, callback.__getitem__, **options)
            if split is None:
                continue
            split.graph.set_codegen(codegen)
            split.recompile()
            actual = torch.utils._pytree.tree_leaves(split(*inputs))
            assert all(map(torch.equal, actual, expected))

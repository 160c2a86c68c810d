"""serialize against torch, byte for byte, on generated programs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch.export import Dim, export

from tests.property.test_unflatten_trees import (
    OPTIONS,
    PICKS,
    Generated,
    Made,
    Plan,
    arguments,
    preservable,
    trees,
)
from tests.support.serialized import assert_travels_as_torch


@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
@settings(OPTIONS, max_examples=8)
@given(trees(writes=True), PICKS, st.booleans(), st.booleans(), st.booleans())
def test_trees(
    strict: bool, plan: Plan, picks: list[int], dynamic: bool, by_name: bool, functional: bool
) -> None:
    torch.manual_seed(0)
    model = Generated(plan, Made())
    args, kwargs = arguments(3, by_name)
    names = preservable(model)
    preserved = tuple(sorted({names[i % len(names)] for i in picks})) if names else ()
    rows = {0: Dim("rows", min=2, max=64)}
    try:
        program = export(
            model,
            args,
            kwargs,
            dynamic_shapes={"x": rows, "scale" if by_name else "y": rows} if dynamic else None,
            strict=strict,
            preserve_module_call_signature=preserved,
        )
        if functional:
            program = program.run_decompositions({})
    except Exception:
        reject()  # not exported by torch
    assert_travels_as_torch(program)

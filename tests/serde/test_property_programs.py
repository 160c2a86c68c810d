"""serialize against torch, byte for byte, on generated programs."""

from __future__ import annotations

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tests.support.generated import examples
from tests.support.serialized import assert_travels_as_torch
from tests.unflatten.test_property_trees import PICKS, Plan, arguments, exported, trees

pytestmark = pytest.mark.slow("generated cases")


@pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
@examples(5)
@given(trees(writes=True), PICKS, st.booleans(), st.booleans(), st.booleans())
def test_trees(
    strict: bool, plan: Plan, picks: list[int], dynamic: bool, by_name: bool, functional: bool
) -> None:
    args, kwargs = arguments(3, by_name)
    try:
        _, program = exported(
            plan, picks, args, kwargs, dynamic=dynamic, functional=functional, strict=strict
        )
    except Exception:
        reject()  # not exported by torch
    assert_travels_as_torch(program)

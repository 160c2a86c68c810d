"""Names with characters beyond ASCII, which native code leaves to Python."""

from __future__ import annotations

import pytest
from torch.fx.graph import _Namespace

from fxpress._torch.fx import parse_name


@pytest.mark.parametrize(
    "name",
    ["1\u00e9", "\u0661x", "\u00e9", "\u00e9_1", "\u00bd", "\u0663_4", "a \u00e9", "a_07\u00e9"],
)
def test_parts_of_names(name: str) -> None:
    candidate, base, number = parse_name(name)
    space = _Namespace()
    assert space.create_name(name, None) == candidate
    assert space._base_count == {base: int(number or 0)}

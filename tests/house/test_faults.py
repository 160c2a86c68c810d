"""The planted faults refer to code and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib")  # of Python 3.11
ROOT = Path(__file__).parents[2]
FAULTS = tomllib.loads((ROOT / "tools/faults/faults.toml").read_text())["fault"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["id"])
def test_fault(fault: dict[str, str]) -> None:
    assert (ROOT / fault["file"]).read_text().count(fault["find"]) == 1
    for caught in fault["caught"]:
        path, name = re.match(r"([\w/.]+)(?:::(\w+))?", caught).groups()  # type: ignore[union-attr]
        assert (name or "") in (ROOT / path).read_text(), caught

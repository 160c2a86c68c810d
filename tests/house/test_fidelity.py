"""docs/fidelity.md names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROWS = [
    line
    for line in (TESTS.parent / "docs" / "fidelity.md").read_text().splitlines()
    if re.match(r"\| [SUZCT]-\d", line)
]
# A file, whose folder may be left out where another row has it, or a function in the latest file.
NAMED = re.compile(r"([\w/]+\.(?:py|cpp|h))|::(\w+)")


def test_rows_name_tests_that_exist() -> None:
    assert len(ROWS) > 100
    for row in ROWS:
        *_, state, tests = (cell.strip() for cell in row.strip("|").split("|"))
        file: Path | None = None
        for path, function in NAMED.findall(tests):
            if path:
                matching = [p for p in TESTS.rglob(Path(path).name) if str(p).endswith(path)]
                assert len(matching) == 1, f"{path}: {row}"
                file = matching[0]
            else:
                assert file is not None, row
                assert re.search(rf"\b{function}\b", file.read_text()), f"{function}: {row}"
        if state == "matched":
            assert file is not None, row

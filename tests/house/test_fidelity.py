"""docs/fidelity.md names existing tests, and states the facts of each release."""

from __future__ import annotations

import re
from pathlib import Path

from fxpress._torch.versions import EXPECTED

TESTS = Path(__file__).parents[1]
ROWS = [
    line
    for line in (TESTS.parent / "docs" / "fidelity.md").read_text().splitlines()
    if re.match(r"\| [SUEMDZCTV]-\d", line)
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


def test_rows_of_releases_say_what_each_has() -> None:
    releases = [row for row in ROWS if row.startswith("| V-")]
    said: dict[str, dict[str, bool]] = {}
    for row in releases:
        _, _, feature, *cells, _ = (cell.strip() for cell in row.strip("|").split("|"))
        assert len(cells) == len(EXPECTED), row
        if feature.startswith("`"):
            said[feature.strip("`")] = {
                minor: {"yes": True, "no": False}[cell]
                for minor, cell in zip(EXPECTED, cells, strict=True)
            }
    assert said == {
        feature: {minor: feature in has for minor, has in EXPECTED.items()}
        for feature in frozenset().union(*EXPECTED.values())
    }

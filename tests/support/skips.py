"""The tests that may be skipped, with reasons: tests/allowed_skips.txt."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

Skip = tuple[str, str]  # the test's id and the reason


def read_allowed(path: Path) -> list[re.Pattern[str]]:
    """Return the lines `test | reason` of the list; a star matches any text, # begins a comment."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    entries = [line.split(" | ") for line in lines if line and not line.startswith("#")]
    return [_pattern(test, reason) for test, reason in entries]


def _pattern(test: str, reason: str) -> re.Pattern[str]:
    texts = [".*".join(map(re.escape, text.strip().split("*"))) for text in (test, reason)]
    return re.compile(r" \| ".join(texts), re.DOTALL)


def not_allowed(skips: Iterable[Skip], allowed: list[re.Pattern[str]]) -> list[Skip]:
    return [
        (test, reason)
        for test, reason in skips
        if not any(pattern.fullmatch(f"{test} | {reason}") for pattern in allowed)
    ]

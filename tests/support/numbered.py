"""The one difference between the bytes that torch writes and ours."""

from __future__ import annotations

import re

_GRAPH_ID = re.compile(rb'(\\"graph_id\\": )(\d+)')


def with_numbered_graphs(text: bytes) -> bytes:
    """Replace torch's ids of graphs, which are addresses, by numbers in order of appearance."""
    numbers: dict[bytes, int] = {}

    def number(match: re.Match[bytes]) -> bytes:
        return match[1] + str(numbers.setdefault(match[2], len(numbers))).encode()

    return _GRAPH_ID.sub(number, text)

"""Tell programs apart by name."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any


def names_of(programs: Sequence[Any]) -> list[str]:
    """Return a name of its own for each path or program, in order.

    Files have their names, and those of equal names a number before it.
    """
    names = [
        os.path.basename(os.fspath(each)) if isinstance(each, (str, os.PathLike)) else "program"
        for each in programs
    ]
    counts = Counter(names)
    return [f"{i} {name}" if counts[name] > 1 else name for i, name in enumerate(names)]

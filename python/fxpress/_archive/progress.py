"""Progress bars for what takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_DELAY = 2.0  # seconds: what is faster shows no bar


@contextmanager
def progress_bar(action: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr, when that is a terminal and tqdm is installed.

    Args:
        action: what is done, for the bar.
        total: bytes.

    Yields:
        What is called with the bytes done since the last call.
    """
    try:
        from tqdm import tqdm
    except ImportError:
        tqdm = None
    if tqdm is None or total == 0:
        yield None
        return
    with tqdm(
        desc=action, total=total, unit="B", unit_scale=True, delay=_DELAY, disable=None
    ) as bar:
        yield lambda count: bar.update(count) and None

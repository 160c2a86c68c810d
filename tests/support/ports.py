"""A port of this machine that nothing listens on."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that was free just now."""
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        port: int = taken.getsockname()[1]
        return port

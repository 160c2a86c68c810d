"""Each command in a terminal: its lines fit, colours are there and not in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.support.command_line import run

_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLUMNS = 60


def in_a_terminal(*arguments: str) -> tuple[int, str]:
    """Run a command with all of its streams at a terminal of 60 columns; status and output."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    command = [sys.executable, "-m", "fxpress", *arguments]
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        environment.pop(name, None)
    process = subprocess.Popen(
        command, stdin=follower, stdout=follower, stderr=follower, env=environment
    )
    os.close(follower)
    parts = []
    try:
        while part := os.read(leader, 1 << 16):
            parts.append(part)
    except OSError:  # the other end is closed
        pass
    os.close(leader)
    return process.wait(), b"".join(parts).decode()


@pytest.mark.parametrize(
    ("command", "status"),
    [
        ("inspect {0}", 0),
        ("inspect {0} --node linear", 0),
        ("inspect {0} --node nowhere", 1),
        ("verify {0}", 0),
        ("hash {0}", 0),
        ("diff {0} {0}", 0),
        ("inspect {1}", 2),
    ],
)
def test_in_a_terminal_and_in_a_pipe(command: str, status: int, path: Path) -> None:
    arguments = command.format(path, Path(__file__)).split()
    found, shown = in_a_terminal(*arguments)
    piped = run(*arguments)
    assert (found, piped.returncode) == (status, status)
    assert "\x1b" not in piped.stdout + piped.stderr
    if arguments[0] == "inspect" and status == 0:
        assert _STYLE.search(shown)
        table = [line for line in _STYLE.sub("", shown).splitlines() if "float" in line]
        assert table
        assert max(map(len, table)) <= COLUMNS
    else:  # lines of text, which the terminal breaks
        assert _STYLE.sub("", shown).split() == (piped.stdout + piped.stderr).split()


def test_completion_for_shells() -> None:
    shown = run("--show-completion", "bash")
    assert "_FXPRESS_COMPLETE" in shown.stdout + shown.stderr

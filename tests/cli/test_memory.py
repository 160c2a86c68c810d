"""Looking at a file of n bytes takes at most 10 n + 256 MB of memory, whatever it unpacks to."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fxpress._inspection.memory import objects_of

PROMISED = 256 << 20  # and ten times the file
COMMANDS = ("inspect {0}", "inspect {0} --node linear", "verify {0}", "hash --state {0}")
MODEL, CONFIG = "models/model.json", "model_weights_config.json"
_PEAK = """
import resource, sys
from fxpress._cli import app
status = app.run(sys.argv[1:])
print(status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10, file=sys.stderr)
"""


def peak_of(*arguments: str) -> tuple[int, int, str]:
    """Run a command; return its status, the most bytes that it had, and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, *arguments], capture_output=True, text=True, check=True
    )
    *said, last = done.stderr.splitlines()
    status, peak = map(int, last.split())
    return status, peak, done.stdout + "\n".join(said)


def repeated(part: bytes, megabytes: int = 110) -> bytes:
    return part * ((megabytes << 20) // len(part))


def distinct_keys() -> bytes:
    return b"{" + b",".join(b'"%x":1' % n for n in range(6 << 20)) + b"}"


TEXTS = {
    "lists": b"[" + repeated(b"[],") + b"[]]",
    "objects": b"[" + repeated(b"{},") + b"{}]",
    "texts": b"[" + repeated(b'"ab",') + b"1]",
    "lists of one": b"[" + repeated(b'["ab"],') + b"1]",
    "objects of one": b"[" + repeated(b'{"a":"bc"},') + b"1]",
    "distinct keys": distinct_keys(),
    "metadata": b'{"config": {}, "metadata": ' + distinct_keys() + b"}",
    "escapes": b'{"' + repeated(b'\\"') + b'": 1}',
}


@pytest.mark.slow("a process for each, and texts of 110 MB")
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    ("end", "command"),
    [
        (end, command)
        for end in (MODEL, CONFIG)
        for command in COMMANDS
        if end == MODEL or "--node" not in command  # which reads no config
    ],
)
def test_peak(command: str, text: str, end: str, path: Path, tmp_path: Path) -> None:
    file = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name in archive.namelist():
            made.writestr(name, TEXTS[text] if name.endswith(end) else archive.read(name))
    status, peak, said = peak_of(*command.format(file).split())
    assert status in (1, 2), said
    assert "Traceback" not in said
    _, least, _ = peak_of(*command.format(path).split())
    assert peak - least <= PROMISED + 10 * file.stat().st_size


def test_estimate_counts_keys_once() -> None:
    """Where there is room enough nobody counts; near the limit each distinct key counts once."""
    text = b"[" + repeated(b'{"a\\"b": "c", "d": "e"},', 1) + b"1]"
    far = objects_of(text, 1 << 40)
    near = objects_of(text, far - 1)
    assert far - near == 120 * (text.count(b":") - 2)
    assert objects_of(text, 0) > 0

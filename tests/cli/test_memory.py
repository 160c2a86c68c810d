"""Looking at a file of n bytes takes at most 10 n + 256 MB of memory, whatever it unpacks to."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from fxpress._inspection.memory import objects_of

PROMISED = 256 << 20  # and ten times the file
COMMANDS = ("inspect {0}", "inspect {0} --node linear", "verify {0}", "hash --state {0}")
MODEL, CONFIG = "models/model.json", "model_weights_config.json"
# Not getrusage: its figure begins with that of the process that starts this one.
_PEAK = """
import sys
from pathlib import Path
from fxpress._cli import app
status = app.run(sys.argv[1:])
lines = Path("/proc/self/status").read_text().splitlines()
kilobytes = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
print(status, int(kilobytes[0]) << 10, file=sys.stderr)
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


TEXTS: dict[str, Callable[[], bytes]] = {
    "lists": lambda: b"[" + repeated(b"[],") + b"[]]",
    "objects": lambda: b"[" + repeated(b"{},") + b"{}]",
    "texts": lambda: b"[" + repeated(b'"ab",') + b"1]",
    "lists of one": lambda: b"[" + repeated(b'["ab"],') + b"1]",
    "objects of one": lambda: b"[" + repeated(b'{"a":"bc"},') + b"1]",
    "distinct keys": distinct_keys,
    "metadata": lambda: b'{"config": {}, "metadata": ' + distinct_keys() + b"}",
    "escapes": lambda: b'{"' + repeated(b'\\"') + b'": 1}',
}


@pytest.fixture(scope="module")
def least(path: Path) -> dict[str, int]:
    """What each command takes for a small file."""
    return {command: peak_of(*command.format(path).split())[1] for command in COMMANDS}


@pytest.mark.slow("processes, and texts of 110 MB")
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("end", [MODEL, CONFIG])
def test_peak(end: str, text: str, path: Path, least: dict[str, int], tmp_path: Path) -> None:
    file, made_text = tmp_path / "bomb.pt2", TEXTS[text]()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for name in archive.namelist():
            made.writestr(name, made_text if name.endswith(end) else archive.read(name))
    for command in COMMANDS:
        if end == CONFIG and "--node" in command:
            continue  # which reads no config
        status, peak, said = peak_of(*command.format(file).split())
        assert status in (1, 2), said
        assert "Traceback" not in said
        assert peak - least[command] <= PROMISED + 10 * file.stat().st_size


def test_estimate_counts_keys_once() -> None:
    """Where there is room enough nobody counts; near the limit each distinct key counts once."""
    text = b"[" + repeated(b'{"a\\"b": "c", "d": "e"},', 1) + b"1]"
    far = objects_of(text, 1 << 40)
    near = objects_of(text, far - 1)
    assert far - near == 120 * (text.count(b":") - 2)
    assert objects_of(text, 0) > 0

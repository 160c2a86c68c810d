"""The check of commit messages, by the rules of CONTRIBUTING.md."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOOD = (
    "pipeline: report a replaced manifest as StageError\n\nA rank failed with a JSON error.\n",
    "serde, archive: embed the size of a record\n# a comment of git\n",
    "Merge branch 'topic'\n",
)
BAD = {
    "Fix a bug": "scope: imperative summary",
    "serde: fix a bug.": "without a period",
    "serde: fixed a bug": "expected an imperative",
    f"serde: {'x' * 66}": "expected at most 72 characters, found 73",
    "serde: fix a bug\nbody": "empty line after the subject",
    "serde: fix a bug\n\nSigned-off-by: A": "without trailers",
    "serde: fix a bug\n\n`f` is no path.": "found 'is no p'",
}


def check(tmp_path: Path, message: str) -> tuple[int, str]:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(message)
    command = [sys.executable, "tools/check_commit.py", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize("message", GOOD)
def test_messages_that_pass(tmp_path: Path, message: str) -> None:
    assert check(tmp_path, message) == (0, "")


@pytest.mark.parametrize(("message", "fault"), BAD.items())
def test_messages_that_fail(tmp_path: Path, message: str, fault: str) -> None:
    status, text = check(tmp_path, message)
    assert status == 1
    assert fault in text
    assert text.count("\n") == 1

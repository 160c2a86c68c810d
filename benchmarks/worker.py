"""Run parts of benchmarks in a new process, by calling a script again with --worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(script: str, *arguments: str) -> Any:
    """Run `script --worker arguments` of this directory; return its output, parsed as JSON.

    Raises:
        RuntimeError: the script failed; its error output is the message.
    """
    path = Path(__file__).with_name(script)
    command = [sys.executable, str(path), "--worker", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} gave {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])

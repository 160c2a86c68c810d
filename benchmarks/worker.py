"""Parts of benchmarks that need a fresh process: a script called again with --worker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def run(script: str, *arguments: str) -> Any:
    """Runs `script --worker arguments` of this directory; gives what it printed, as JSON.

    Raises:
        RuntimeError: it failed; its error output is the message.
    """
    path = Path(__file__).with_name(script)
    command = [sys.executable, str(path), "--worker", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} gave {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])

"""Copies of tensors while other threads fill them, and while others change the originals."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow("large programs and states")

PRELUDE = """
import os, signal, threading, time
import torch
from fxpress import state
torch.set_num_threads(3)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent process may ignore the signal
"""
INTERRUPTED = """
tensors = [torch.ones(64 << 20, dtype=torch.uint8) for _ in range(8)]
done = 0
for wait in (0.01, 0.02, 0.03, 0.05):
    try:
        threading.Timer(wait, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        state.clone(tensors)
        time.sleep(10)
    except KeyboardInterrupt:
        done += 1
assert done == 4, done
assert all(int(copy[-1]) == 1 for copy in state.clone(tensors))
"""
CHANGED = """
tensors = [torch.ones(16 << 20, dtype=torch.uint8) for _ in range(8)]
end = False
def change():
    while not end:
        for tensor in tensors:
            tensor.data = torch.ones(16 << 20, dtype=torch.uint8)
thread = threading.Thread(target=change)
thread.start()
for _ in range(10):
    assert all(int(copy[-1]) == 1 for copy in state.clone(tensors))
end = True
thread.join()
"""


@pytest.mark.parametrize("script", [INTERRUPTED, CHANGED], ids=["interrupted", "changed"])
def test_copies_outlive_what_happens(script: str) -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", PRELUDE + script]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr

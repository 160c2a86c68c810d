"""Compares the stubs of the extension modules with the modules: `python tools/check_stubs.py`.

Needs mypy, and an fxpress that can be imported. The extension binds functions on graphs only after
its tables are filled, so this script fills them before it calls stubtest.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mypy import stubtest

from fxpress._files.serde import native_table
from fxpress._torch import aten

native_table.fill()
_ROOT = Path(__file__).parents[1]
_ARGUMENTS = [
    "fxpress._native",
    aten.__name__,
    f"--mypy-config-file={_ROOT / 'pyproject.toml'}",
    f"--allowlist={Path(__file__).with_name('stub_differences.txt')}",
]

if __name__ == "__main__":
    sys.exit(stubtest.test_stubs(stubtest.parse_options(_ARGUMENTS)))

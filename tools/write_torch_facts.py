"""Write what the commands that do not import torch have to know of it.

    python tools/write_torch_facts.py

Run it with the newest torch that fxpress serves. It writes
python/fxpress/_files/format/torch.json:
the schema of programs in files, and what operators do besides returning new values.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from fxpress._files.serde.damage import UnknownNameError
from fxpress._files.serde.hashing import _describe
from fxpress._files.serde.schema import TYPES, describe
from fxpress._files.serde.targets import _FUNCTIONS, find_target

FILE = Path(__file__).parent.parent / "python/fxpress/_files/format/torch.json"
_NAMESPACES = ("aten", "prims", "quantized", "_c10d_functional", "mkldnn", "inductor", "export")


def operators() -> dict[str, list[Any]]:
    """Return the traits of torch's operators, by their names in files."""
    texts = set(_FUNCTIONS)
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        if namespace in _NAMESPACES:
            packet, _, overload = rest.partition(".")
            texts.add(f"torch.ops.{namespace}.{packet}.{overload or 'default'}")
    for operator in torch._ops._higher_order_ops:
        texts.add(f"torch.ops.higher_order.{operator}")
    found = {}
    for text in sorted(texts):
        try:
            found[text] = list(_describe(find_target(text)))
        except UnknownNameError:
            continue  # it has an implementation, but no schema
    return found


def facts() -> dict[str, Any]:
    """Return the content of the file."""
    return {
        "torch": torch.__version__.partition("+")[0],
        "schema": [describe(cls) for cls in TYPES.values()],
        "operators": operators(),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(facts(), separators=(",", ":")) + "\n")
    print(f"{FILE.stat().st_size:,} bytes")

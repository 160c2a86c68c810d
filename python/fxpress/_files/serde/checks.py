"""Collect the input of `csrc/serde/check.h`, which does the work of torch's verifier natively."""

from __future__ import annotations

from typing import Any

import torch

from fxpress._torch import serde as compat

# Fields: graph modules (the root first), state, constants, whether operators must be functional.
ToCheck = tuple[list[torch.fx.GraphModule], Any, Any, bool]


def to_check(
    root: torch.fx.GraphModule, verifiers: list[type[Any]], state_dict: Any, constants: Any
) -> ToCheck | None:
    """Return the input of the native check; None if it cannot replace the program's verifiers."""
    if len(verifiers) != 1 or verifiers[0] not in compat.VERIFIERS:
        return None
    modules = [m for m in root.modules() if isinstance(m, torch.fx.GraphModule)]
    return modules, state_dict, constants, verifiers[0] is not compat.TrainingIRVerifier

"""Collect the input of the native check of a program (`csrc/serde/check.h`)."""

from __future__ import annotations

from typing import Any

import torch

from fxpress._torch import serde as compat

# (graph modules with the root first, state, constants, whether graphs must be functional)
ToCheck = tuple[list[torch.fx.GraphModule], Any, Any, bool]


def to_check(
    root: torch.fx.GraphModule, verifiers: list[type[Any]], state_dict: Any, constants: Any
) -> ToCheck | None:
    """Return the input of the check; None unless the verifier is one of torch's known ones."""
    if len(verifiers) != 1 or verifiers[0] not in compat.VERIFIERS:
        return None
    modules = [m for m in root.modules() if isinstance(m, torch.fx.GraphModule)]
    return modules, state_dict, constants, verifiers[0] is not compat.TrainingIRVerifier

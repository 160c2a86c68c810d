"""The comparisons that the installed torch permits."""

from __future__ import annotations

import pytest
import torch

from fxpress._torch.versions import features

# torch.fx.passes.split_module changed in 2.12 and 2.13. fxpress's equals that in 2.13.
PARITY = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
needs_parity = pytest.mark.skipif(not PARITY, reason="torch's own split is older than 2.13")


def needs(feature: str) -> pytest.MarkDecorator:
    """Skip a test if torch lacks a feature of `fxpress._torch.versions`."""
    return pytest.mark.skipif(
        not getattr(features, feature), reason=f"this torch lacks the feature {feature}"
    )

"""What the torch under test lets us compare."""

from __future__ import annotations

import pytest
import torch

# torch.fx.passes.split_module changed in 2.12 and 2.13; ours is the one of 2.13 under any torch.
PARITY = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
needs_parity = pytest.mark.skipif(not PARITY, reason="torch's own split is older than 2.13")

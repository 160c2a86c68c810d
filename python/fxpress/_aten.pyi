from collections.abc import Sequence
from typing import Any

import torch

def build_info() -> dict[str, Any]: ...
def storage_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of the tensors' storages, shared ones counted once."""

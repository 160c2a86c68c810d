"""How releases of torch differ, found by probing."""

from __future__ import annotations


def built_for() -> str | None:
    """The torch version that `_aten_ext` was compiled against; None when it was not built."""
    try:
        from fxpress import _build_torch  # written by the build
    except ImportError:
        return None
    return _build_torch.TORCH_VERSION

from fxpress import _aten_ext as extension
from fxpress._aten_ext import build_info, storage_bytes

__all__ = ["build_info", "extension", "storage_bytes"]

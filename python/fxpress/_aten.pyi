from fxpress import _aten_ext as extension
from fxpress._aten_ext import build_info, clone_tensors, same_data, storage_bytes

__all__ = ["build_info", "clone_tensors", "extension", "same_data", "storage_bytes"]

"""Load `_aten_ext`, the part that needs libtorch, if it was built for the running torch.

Raises:
    UnsupportedTorchError: `_aten_ext` was built for another torch minor version. Loading it anyway
        could crash the process: libtorch's C++ interface changes with each minor version.
    ImportError: `_aten_ext` was not built.
"""

import torch

from fxpress._errors import UnsupportedTorchError
from fxpress._torch.versions import built_for as _built_for

_built = _built_for()
_REBUILD = "rebuild it with `pip install --no-build-isolation --no-deps --force-reinstall fxpress`"

if _built is None:
    raise ImportError(f"fxpress was built without its tensor part (_aten): {_REBUILD}.")
if _built.split(".")[:2] != torch.__version__.split(".")[:2]:
    raise UnsupportedTorchError(
        f"fxpress._aten was built for torch {_built} and cannot be used with torch "
        f"{torch.__version__}: {_REBUILD}."
    )

from fxpress import _aten_ext as extension  # noqa: E402
from fxpress._aten_ext import (  # noqa: E402
    allocate_bytes,
    build_info,
    clone_aliased,
    clone_separately,
    make_views,
    same_data,
    storage_bytes,
    storage_places,
    storages_of,
)

__all__ = [
    "allocate_bytes",
    "build_info",
    "clone_aliased",
    "clone_separately",
    "extension",
    "make_views",
    "same_data",
    "storage_bytes",
    "storage_places",
    "storages_of",
]

"""Load the part that needs libtorch, which is built once for each minor version of torch.

Raises:
    UnsupportedTorchError: fxpress has no such part for the running torch. One of another minor
        version could crash the process: libtorch's C++ interface changes with each.
    ImportError: fxpress was built without such parts.
"""

import importlib

import torch

from fxpress._base.errors import UnsupportedTorchError
from fxpress._torch.versions import REBUILD as _REBUILD
from fxpress._torch.versions import built_for as _built_for
from fxpress._torch.versions import minor as _minor

_built = _built_for()

if not _built:
    raise ImportError(f"fxpress was built without its tensor part (_aten): {_REBUILD}.")
if _minor() not in _built:
    raise UnsupportedTorchError(
        f"fxpress was built for torch {' and '.join(_built)}, and its tensor part (_aten) cannot "
        f"be used with torch {torch.__version__}: {_REBUILD}."
    )

extension = importlib.import_module(f"fxpress._aten_{_minor().replace('.', '')}")
allocate_bytes = extension.allocate_bytes
build_info = extension.build_info
clone_aliased = extension.clone_aliased
clone_separately = extension.clone_separately
like_pattern = extension.like_pattern
make_views = extension.make_views
same_data = extension.same_data
share_gradient_edge = extension.share_gradient_edge
storage_bytes = extension.storage_bytes
storage_numbers = extension.storage_numbers
storage_places = extension.storage_places
storages_of = extension.storages_of
views_like = extension.views_like

__all__ = [
    "allocate_bytes",
    "build_info",
    "clone_aliased",
    "clone_separately",
    "extension",
    "like_pattern",
    "make_views",
    "same_data",
    "share_gradient_edge",
    "storage_bytes",
    "storage_numbers",
    "storage_places",
    "storages_of",
    "views_like",
]

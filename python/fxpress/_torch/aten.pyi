from fxpress import _aten_ext as extension
from fxpress._aten_ext import (
    allocate_bytes,
    build_info,
    clone_aliased,
    clone_separately,
    like_pattern,
    make_views,
    same_data,
    share_gradient_edge,
    storage_bytes,
    storage_numbers,
    storage_places,
    storages_of,
    views_like,
)

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

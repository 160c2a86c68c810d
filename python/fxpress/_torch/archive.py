"""Import torch's names for archives.

`torch.export.pt2_archive._package` is imported on use, because it imports Inductor (1 second).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export.pt2_archive._package_weights import Weights as Weights
from torch.export.pt2_archive._package_weights import get_complete_tensor as get_complete_tensor
from torch.export.pt2_archive._package_weights import group_weights as group_weights

from fxpress._base.errors import UnsupportedError
from fxpress._torch.versions import features

pickle_script_object = torch._C._pickle_save
unpickle_script_object = torch._C._pickle_load_obj


def contents_class() -> Any:
    """Return the class of the result of `load_pt2`."""
    from torch.export.pt2_archive._package import PT2ArchiveContents

    return PT2ArchiveContents


def load_compiled_model(
    path: str, model: str, *options: Any, use_stream_affinity: bool = False
) -> Any:
    """Load a model from an archive and return it; AOTInductor has compiled the model."""
    from torch._inductor.codecache import get_device_information
    from torch.export.pt2_archive._package import AOTICompiledModel

    if use_stream_affinity and not features.compiled_models_follow_streams:
        raise UnsupportedError(f"torch {torch.__version__} does not have use_stream_affinity")
    loader = torch._C._aoti.AOTIModelPackageLoader
    metadata = loader.load_metadata_from_package(path, model)
    if features.compiled_models_follow_streams:
        options = (*options, use_stream_affinity)
    loaded = AOTICompiledModel(loader(path, model, *options))
    device = metadata.get("AOTI_DEVICE_KEY")  # absent in older packages
    for key, value in (get_device_information(device) if device else {}).items():
        if metadata.get(key, value) != value:
            import logging

            logging.getLogger("fxpress").warning(
                "%s was compiled for another device: %s is %s here, and was %s there.",
                model,
                key,
                value,
                metadata[key],
            )
    return loaded

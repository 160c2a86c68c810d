"""Load `_aten`, the extension that needs libtorch. It is built for each minor version of torch.

Raises:
    UnsupportedTorchError: fxpress was not built for this minor version of torch. The extension for
        another version could crash the process, because libtorch's C++ interface changes.
    ImportError: fxpress was built without such extensions.
"""

import importlib

import torch

from fxpress._base.errors import UnsupportedTorchError
from fxpress._torch.versions import REBUILD as _REBUILD
from fxpress._torch.versions import built_for as _built_for
from fxpress._torch.versions import minor as _minor

_built = _built_for()

if not _built:
    raise ImportError(f"fxpress was built without its extension for tensors (_aten): {_REBUILD}.")
if _minor() not in _built:
    raise UnsupportedTorchError(
        f"fxpress was built for torch {' and '.join(_built)}; its extension for tensors (_aten) "
        f"cannot be used with torch {torch.__version__}: {_REBUILD}."
    )

extension = importlib.import_module(f"fxpress._aten_{_minor().replace('.', '')}")
globals().update({k: v for k, v in vars(extension).items() if not k.startswith("__")})

"""Find the features of the installed torch by probing, because releases of torch differ.

The code compares no version numbers. The table `EXPECTED` lists the features of each minor release,
and a test compares it with the probes.
"""

from __future__ import annotations

from functools import cached_property
from types import ModuleType


class Features:
    """The features of the installed torch. Each probe imports its module when it is first read."""

    @cached_property
    def fake_device_is_a_property(self) -> bool:
        """True if a fake tensor keeps its device in `_fake_device`, not in `fake_device`."""
        from torch._subclasses.fake_tensor import FakeTensor

        return hasattr(FakeTensor, "fake_device")

    @cached_property
    def opaque_values_are_custom_classes(self) -> bool:
        """True if older releases' function `is_opaque_value` is named `is_custom_class_obj`."""
        from torch._library import opaque_object

        return hasattr(opaque_object, "is_custom_class_obj")

    @cached_property
    def opaque_records(self) -> bool:
        """True if archives may have records of opaque objects."""
        from torch.export.pt2_archive import constants

        return hasattr(constants, "OPAQUE_OBJ_FILENAME_PREFIX")

    @cached_property
    def symbols_by_name(self) -> bool:
        """True if a ShapeEnv has a table of symbols by name, and hints for symbols only."""
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        return hasattr(ShapeEnv(), "name_to_symbol")

    @cached_property
    def modules_tracked_by_var_getattr(self) -> bool:
        """True if Dynamo's variables look up attributes by `var_getattr`, as fxpress's do."""
        from torch._dynamo import exc, utils
        from torch._dynamo.variables import base, nn_module

        return (
            "var_getattr" in vars(nn_module.NNModuleVariable)
            and hasattr(exc, "raise_type_error")
            and hasattr(utils, "enumerate_items_with_dict_position")
            and hasattr(base, "NO_SUCH_SUBOBJ")
        )


features = Features()

# Minor release of torch -> the names of the features that it has.
EXPECTED: dict[str, frozenset[str]] = {
    "2.13": frozenset(
        {"fake_device_is_a_property", "opaque_records", "modules_tracked_by_var_getattr"}
    ),
}


def built_for() -> str | None:
    """Return the torch version that `_aten_ext` was compiled against; None if it was not built."""
    try:
        from fxpress import _build_torch  # written by the build
    except ImportError:
        return None
    return _build_torch.TORCH_VERSION


def is_of_torch(error: ImportError | AttributeError) -> bool:
    """Return whether an import of fxpress failed because torch lacks a module or a name."""
    if isinstance(error, ImportError):
        module = error.name or ""
    elif isinstance(error.obj, ModuleType):
        module = error.obj.__name__
    else:
        owner = error.obj if isinstance(error.obj, type) else type(error.obj)
        module = owner.__module__
    return module.partition(".")[0] == "torch"

"""Drop-in for `torch._export.serde.serialize`: writing exported programs.

The bytes are written natively, straight from the graph, without any object of torch's schema.
"""

from fxpress._serde.program import serialize
from fxpress._torch_compat_serde import SerializedArtifact, SerializeError

__all__ = ["SerializeError", "SerializedArtifact", "serialize"]

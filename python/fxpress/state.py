"""The copying of tensors: in memory, between devices, and to and from files.

Many tensors at a time; those that share a storage go on sharing one. `unflatten`, `archive.save`
and `archive.load` copy with the same code.
"""

from fxpress._state.copies import clone, move
from fxpress._state.files import load_into, read, write

__all__ = ["clone", "load_into", "move", "read", "write"]

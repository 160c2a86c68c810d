"""Copy tensors: in memory, between devices, and to and from files.

The functions copy many tensors at a time. Copies of tensors that share a storage share one too.
`unflatten`, `archive.save` and `archive.load` copy with the same code.
"""

from fxpress._torch.probes import room

with room("state"):
    from fxpress._state.copies import clone, move
    from fxpress._state.files import load_into, read, write

__all__ = ["clone", "load_into", "move", "read", "write"]

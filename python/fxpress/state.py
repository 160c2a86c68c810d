"""Copy tensors: in memory, between devices, and to and from files.

The functions copy many tensors at a time. If tensors share a storage, their copies share one, too.
`unflatten`, `archive.save` and `archive.load` copy tensors with the same code.
"""

from fxpress._torch.probes import component

with component("state"):
    from fxpress._files.archive.state_files import load_into, read, write
    from fxpress._files.tensors.copies import clone, move

__all__ = ["clone", "load_into", "move", "read", "write"]

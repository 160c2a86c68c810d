"""Read and write checkpoints for `torch.distributed.checkpoint`, and convert between formats."""

from fxpress._torch.probes import component

with component("checkpoint"):
    from fxpress._distributed.checkpoint.convert import convert_weights
    from fxpress._distributed.checkpoint.reader import ArchiveReader
    from fxpress._distributed.checkpoint.writer import ArchiveWriter

__all__ = ["ArchiveReader", "ArchiveWriter", "convert_weights"]

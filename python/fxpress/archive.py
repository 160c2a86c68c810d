"""Save and load programs: stands in for `save`, `load` and `pt2_archive` of `torch.export`."""

from fxpress._torch.probes import component

with component("archive"):
    from fxpress._files.archive.load import load, load_pt2, load_weights_to_pt2_contents
    from fxpress._files.archive.package import package_pt2, save
    from fxpress._files.archive.reader import PT2ArchiveReader, is_pt2_package, verify
    from fxpress._files.archive.writer import PT2ArchiveWriter
    from fxpress._files.errors import ArchiveError
    from fxpress._files.serde.limits import LimitError, Limits
    from fxpress._torch.serde import SerializeError

__all__ = [
    "ArchiveError",
    "LimitError",
    "Limits",
    "PT2ArchiveReader",
    "PT2ArchiveWriter",
    "SerializeError",
    "is_pt2_package",
    "load",
    "load_pt2",
    "load_weights_to_pt2_contents",
    "package_pt2",
    "save",
    "verify",
]

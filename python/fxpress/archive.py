"""Programs in files: drop-in for `torch.export.save`, `load` and `torch.export.pt2_archive`."""

from typing import Any

from fxpress._archive.errors import ArchiveError
from fxpress._archive.load import load, load_pt2, load_weights_to_pt2_contents
from fxpress._archive.package import package_pt2, save
from fxpress._archive.progress import progress_bar
from fxpress._archive.reader import PT2ArchiveReader, is_pt2_package
from fxpress._archive.writer import PT2ArchiveWriter
from fxpress._torch_compat_serde import SerializeError

__all__ = [
    "ArchiveError",
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


def verify(f: Any) -> None:
    """Reads a file from end to end and compares every record with its checksum.

    Args:
        f: a path, an open file, or a buffer.

    Raises:
        OSError: the file cannot be read.
        ArchiveError: it is no archive, or damaged; the message names the record.
    """
    with PT2ArchiveReader.of_any_format(f) as archive:
        records = [(name, archive.record(name)) for name in archive.get_file_names()]
        for name, record in records:
            if record.is_deflated:
                archive.read_bytes(name)
        plain = [(name, 0, record.size) for name, record in records if not record.is_deflated]
        with progress_bar("checking", sum(size for *_, size in plain)) as bar:
            archive.read_into(plain, bar)

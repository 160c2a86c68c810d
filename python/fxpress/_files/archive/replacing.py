"""Move an archive and its sidecar files (its weights) to their paths as if they were one file.

Each save gives its sidecar files unique names. It moves the sidecar files first and the archive
last, so that an archive at its path never lacks its sidecar files. Then it removes the sidecar
files that only the replaced archive names.

A killed writer leaves a file with a temporary name: its new archive, or a hard link to the archive
that it replaced. The next save reads this file to find the sidecar files that it removes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fxpress._base.errors import Error
from fxpress._files.archive import folders
from fxpress._files.archive.files import AtomicFile, DirectFile, Output
from fxpress._files.archive.reader import PT2ArchiveReader
from fxpress._files.archive.tensor_file import number_of
from fxpress._files.errors import ArchiveError
from fxpress._files.format import names
from fxpress._files.format.weights_location import SUFFIX, Sidecar, read_place


def place_of(text: str) -> Sidecar:
    """Parse the record that names a sidecar file; ArchiveError for a file in another folder."""
    try:
        return read_place(text)
    except ValueError as e:
        raise ArchiveError(str(e)) from None


def named_by(path: Path) -> set[Sidecar]:
    """Return the sidecar files that the archive at a path names; empty if it is not an archive."""
    found: set[Sidecar] = set()
    if not path.is_file():  # opening a pipe would block
        return found
    with contextlib.suppress(Error), PT2ArchiveReader.of_any_format(path) as archive:
        for record in archive.get_file_names():
            if names.is_weights_file_record(record) and (text := archive.read_string(record)):
                with contextlib.suppress(Error):
                    found.add(place_of(text))
    return found


def _named_in(folder: Path, but: Path) -> Iterator[Sidecar]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            is_program = entry.is_file(follow_symlinks=False) and path.suffix != SUFFIX
            if is_program and path != but:
                yield from named_by(path)


def _only_named_by(path: Path, new: Path | None = None) -> list[Path]:
    """Return an archive's sidecar files that neither `new` nor other archives in the folder use."""
    folder = path.parent
    has_weights = any(name.endswith(SUFFIX) for name in os.listdir(folder))
    places = named_by(path) if has_weights else set()
    if places:
        places = places.difference(_named_in(folder, path), named_by(new) if new else ())
    files = [(folder / place.file, place.number) for place in places]
    return [file for file, number in files if number_of(file) == number]


def remove_abandoned(target: Path) -> None:
    """Remove the temporary files of killed writers of an archive, and their sidecar files."""
    with contextlib.suppress(OSError), folders.locked_folder(target.parent):
        for path in folders.find_abandoned(target):
            with contextlib.suppress(OSError):
                for file in (*_only_named_by(path), path):
                    file.unlink(missing_ok=True)


class _Replaced:
    """The archive that `new` replaces, and the sidecar files that only this archive needs.

    The constructor finds the files before the replacement, because reading the folder may fail.
    """

    def __init__(self, target: Path, new: Path) -> None:
        self._target = target
        self._second: Path | None = None  # a hard link to the archive during the replacement
        self._weights: list[Path] | None = []  # None: unknown, so none are removed
        try:
            self._weights = _only_named_by(target, new)
        except PermissionError:
            pass
        except OSError:
            self._weights = None

    def name_twice(self) -> None:
        """Link the archive. If this save is killed, the next save finds the sidecar files."""
        if self._weights != []:
            second = folders.temporary_path(self._target)
            with contextlib.suppress(OSError):  # the file system does not support links
                os.link(self._target, second)
                self._second = second

    def remove_weights(self) -> None:
        """Remove the sidecar files of the replaced archive."""
        with contextlib.suppress(OSError):  # the next save tries to remove the files again
            if self._weights is not None:
                for path in self._weights:
                    path.unlink(missing_ok=True)
                self.forget()

    def forget(self) -> None:
        """Remove the hard link that `name_twice` created."""
        if self._second is not None:
            with contextlib.suppress(OSError):
                self._second.unlink()


def commit_files(program: Output, weights: Sequence[AtomicFile] = ()) -> None:
    """Move an archive and its sidecar files to their paths. On errors, all or none are moved."""
    try:
        for file in (*weights, program):
            file.sync()
        if not isinstance(program, DirectFile):
            _replace(program, weights)
    except OSError as e:  # the message must not name temporary files
        raise OSError(e.errno, e.strerror) from None


def _replace(program: Output, weights: Sequence[AtomicFile]) -> None:
    folder = program.target.parent
    with folders.locked_folder(folder):
        replaced = _Replaced(program.target, Path(f"/proc/self/fd/{program.descriptor}"))
        if isinstance(program, AtomicFile):
            _rename_together(program, weights, replaced)
            folders.sync_folder(folder)
        else:
            program.move_into_place()
        replaced.remove_weights()


def _rename_together(
    program: AtomicFile, weights: Sequence[AtomicFile], replaced: _Replaced
) -> None:
    placed: list[AtomicFile] = []
    try:
        replaced.name_twice()
        for file in weights:
            placed.append(file)
            file.move_into_place()
        if weights:
            folders.sync_folder(program.target.parent)
        program.move_into_place()
    except BaseException:
        # Remove the new sidecar files if the new archive was not moved. Check whether it was moved,
        # because a signal may interrupt after the rename. If the check fails, remove no file.
        with contextlib.suppress(OSError):
            if not program.is_in_place():
                for file in filter(AtomicFile.is_in_place, placed):
                    file.target.unlink()
                replaced.forget()
        raise

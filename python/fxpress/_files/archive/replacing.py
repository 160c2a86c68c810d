"""Put an archive and the weights beside it in their places as if they were one file.

Each save gives its weights files names that no other program uses. The weights are put in place
first, then the program, with which both are there. Then the weights that only the replaced program
named are removed. A writer that is killed in between leaves a temporary file, which is its program,
complete but not in its place, or a second name of the replaced program. The next save finds in this
file the names of weights that no program needs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from fxpress._files.archive.files import AtomicFile, DirectFile, Output
from fxpress._files.archive.folders import abandoned, beside, locked_folder, sync_folder
from fxpress._files.archive.reader import PT2ArchiveReader
from fxpress._files.archive.tensor_file import number_of
from fxpress._files.errors import ArchiveError
from fxpress._files.format import names
from fxpress._files.format.weights_location import Place, read_place

_SUFFIX = ".safetensors"


def place_of(text: str) -> Place:
    """Read the record of a file of weights; ArchiveError for a file that is in another folder."""
    try:
        return read_place(text)
    except ValueError as e:
        raise ArchiveError(str(e)) from None


def named_by(path: Path) -> set[Place]:
    """Return the weights that the archive at a path names; none where there is no archive."""
    found = set()
    with contextlib.suppress(ArchiveError), PT2ArchiveReader.of_any_format(path) as archive:
        for record in archive.get_file_names():
            if names.is_weights_file_record(record) and (text := archive.read_string(record)):
                with contextlib.suppress(ArchiveError):
                    found.add(place_of(text))
    return found


def _has_weights(folder: Path) -> bool:
    return any(name.endswith(_SUFFIX) for name in os.listdir(folder))


def _named_in(folder: Path, but: Path | None) -> Iterator[Place]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            is_program = entry.is_file(follow_symlinks=False) and path.suffix != _SUFFIX
            if is_program and path != but:
                yield from named_by(path)


def _remove(places: set[Place], folder: Path, but: Path | None = None) -> None:
    """Remove weights that no archive of a folder names, except for the archive at `but`."""
    if places:
        places = places.difference(_named_in(folder, but))
    for place in places:
        path = folder / place.file
        with contextlib.suppress(FileNotFoundError):
            if number_of(path) == place.number:
                path.unlink()


def remove_abandoned(target: Path) -> None:
    """Remove the files that killed writers of an archive have left, as far as they are known."""
    with contextlib.suppress(OSError), locked_folder(target.parent):
        for path in abandoned(target):
            with contextlib.suppress(OSError):
                if _has_weights(target.parent):
                    _remove(named_by(path), target.parent, but=path)
                path.unlink()


class _Replaced:
    """The program that a new one replaces. The weights that it alone needs can be removed then."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._second: Path | None = None  # its name while it is replaced
        self._places: set[Place] | None = set()  # None: they could not be read this time
        try:
            if _has_weights(target.parent):
                self._places = named_by(target)
        except (FileNotFoundError, PermissionError):
            pass
        except OSError:
            self._places = None

    def name_twice(self) -> None:
        """Give the program a second name, so that its weights are known if the writer is killed."""
        if self._places != set():
            second = beside(self._target)
            with contextlib.suppress(OSError):  # a file system without links
                os.link(self._target, second)
                self._second = second

    def remove_weights(self) -> None:
        """Remove the weights of the program that was replaced."""
        with contextlib.suppress(OSError):  # the next save tries again
            if self._places is not None:
                _remove(self._places, self._target.parent, but=self._second)
                self.forget()

    def forget(self) -> None:
        """Remove the second name of the program."""
        if self._second is not None:
            with contextlib.suppress(OSError):
                self._second.unlink()


def put_together(program: Output, weights: Sequence[AtomicFile] = ()) -> None:
    """Rename an archive and its weights into place; after an OSError both are old or both new."""
    try:
        for file in (*weights, program):
            file.sync()
        if not isinstance(program, DirectFile):
            _replace(program, weights)
    except OSError as e:  # the error must not name temporary files
        raise OSError(e.errno, e.strerror) from None


def _replace(program: Output, weights: Sequence[AtomicFile]) -> None:
    folder = program.target.parent
    with locked_folder(folder):
        replaced = _Replaced(program.target)
        if isinstance(program, AtomicFile):
            _rename_together(program, weights, replaced)
            sync_folder(folder)
        else:
            program.put_in_place()
        replaced.remove_weights()


def _rename_together(
    program: AtomicFile, weights: Sequence[AtomicFile], replaced: _Replaced
) -> None:
    placed: list[AtomicFile] = []
    try:
        replaced.name_twice()
        for file in weights:
            placed.append(file)
            file.put_in_place()
        if weights:
            sync_folder(program.target.parent)
        program.put_in_place()
    except BaseException:
        # An interrupt may come right after the program is in place. Where this is not known, all
        # files stay.
        with contextlib.suppress(OSError):
            if not program.is_in_place():
                _undo(placed)
                replaced.forget()
        raise


def _undo(placed: list[AtomicFile]) -> None:
    """Remove the new weights, because the old program stays."""
    for file in placed:
        if file.is_in_place():
            file.target.unlink()

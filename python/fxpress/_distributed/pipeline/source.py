"""Open a source of stages: a folder of files or one archive, at a path or a URL."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from torch.export import ExportedProgram

from fxpress import _native
from fxpress._distributed.checkpoint.reader import ArchiveReader, reader_of
from fxpress._distributed.errors import PipelineError, StageError
from fxpress._distributed.stages import manifest
from fxpress._distributed.stages.save import MANIFEST, program_name
from fxpress._files.archive.contents import read_parts, records_of
from fxpress._files.archive.load_options import Options
from fxpress._files.archive.reader import PT2ArchiveReader
from fxpress._files.archive.remote_archive import RemoteArchive
from fxpress._files.errors import ArchiveError
from fxpress._files.format import names
from fxpress._files.format.recognition import read_file
from fxpress._files.format.weights_location import is_file_name
from fxpress._files.remote.remote_file import ChangedFileError, RemoteFile
from fxpress._files.remote.urls import is_archive, joined, local_path, shown, url_of
from fxpress._files.serde.limits import Budget, Limits


class Source(os.PathLike[str]):
    """Stages at a path or a URL; errors contain `name`. Equal stages have equal `digest`s."""

    def __init__(self, path: str | bytes | os.PathLike[str], limits: Limits | None = None) -> None:
        self._given = os.fsdecode(path)
        self._url, self._limits = url_of(path), limits
        self._path = Path(local_path(path))
        self.name = str(self._path) if self._url is None else shown(self._url)
        self._is_folder = self._path.is_dir() if self._url is None else not is_archive(self._url)
        self._remote: dict[str, RemoteArchive] = {}  # URL of an archive -> the archive
        if self._is_folder:
            data = self._manifest_file()
            budget = Budget(limits, len(data))
        else:
            with contextlib.ExitStack() as stack:
                stack.enter_context(self._named(self._path))
                archive = self._opened(self._path, stack)
                if archive.find(names.EXTRA_DIR + MANIFEST) is None:
                    raise PipelineError(
                        f"{self.name} does not contain stages: save them with save_stages"
                    )
                data = archive.read_bytes(names.EXTRA_DIR + MANIFEST)
                budget = archive.budget
                self.digest = manifest.digest_of_records(archive, archive.get_file_names())
        try:
            self.manifest: manifest.Manifest = manifest.read_manifest(data, budget)
        except StageError as error:
            raise PipelineError(str(error)) from None
        if self._is_folder:
            self.digest = self.manifest.digest

    def __fspath__(self) -> str:
        return self._given

    def _manifest_file(self) -> bytes:
        try:
            if self._url is None:
                return read_file(self._path / MANIFEST)
            file = RemoteFile(joined(self._url, MANIFEST))
            size = file.size
        except FileNotFoundError:
            raise PipelineError(
                f"{self.name} does not contain stages: {MANIFEST} is missing"
            ) from None
        Budget(self._limits, 0).charge(size, f"the manifest of {self.name}")
        with changes_named():
            return file.read_all()

    def _opened(self, path: Path, stack: contextlib.ExitStack) -> PT2ArchiveReader:
        """Open an archive, and read its directory."""
        if self._url is None:
            return stack.enter_context(PT2ArchiveReader(path, limits=self._limits))
        return self._remote_archive(path)

    def _remote_archive(self, path: Path) -> RemoteArchive:
        url = self._url_of(path)
        if url not in self._remote:
            self._remote[url] = RemoteArchive(RemoteFile(url), self._limits)
        return self._remote[url]

    def _url_of(self, path: Path) -> str:
        assert self._url is not None
        return joined(self._url, path.name) if self._is_folder else self._url

    def _file_of(self, number: int) -> Path:
        if not self._is_folder:
            return self._path
        name = self.manifest.stages[number].file
        if not is_file_name(name, ".pt2"):
            raise PipelineError(f"the manifest is damaged: {name!r} is not the name of a file")
        return self._path / name

    def reader_of(self, number: int) -> ArchiveReader:
        """Return a reader of the weights of a stage, whose program was loaded without them."""
        model, path = self._program_of(number), self._file_of(number)
        if self._url is None:
            return ArchiveReader(path, model=model, limits=self._limits)
        with self._named(path):
            archive = self._remote_archive(path)
            self._check(archive, self.manifest.stages[number])
        return reader_of(archive, model, self._limits)

    def _program_of(self, number: int) -> str:
        """Return the name of a stage's program in its file."""
        return names.MODEL if self._is_folder else program_name(number)

    def load(self, number: int, options: Options) -> ExportedProgram:
        """Return the program of a stage; the records of other stages are not read."""
        model, path = self._program_of(number), self._file_of(number)
        with changes_named(), self._named(path), contextlib.ExitStack() as stack:
            archive = self._opened(path, stack)
            if isinstance(archive, RemoteArchive):
                stack.enter_context(archive.loading(model))
            else:
                options = Options(**{**vars(options), "path": os.fspath(path)})
            self._check(archive, self.manifest.stages[number])
            parts = read_parts(archive, model, options)
        with self._named(path), _native.GcPause():
            return parts.decode(options)

    @contextlib.contextmanager
    def _named(self, path: Path) -> Iterator[None]:
        """Run a block; add the path or URL of the file to its ArchiveErrors."""
        try:
            yield
        except ArchiveError as error:
            name = str(path) if self._url is None else shown(self._url_of(path))
            if str(error).startswith(name):
                raise
            raise type(error)(f"{name}: {error}") from error

    def _check(self, archive: PT2ArchiveReader, facts: manifest.StageFacts) -> None:
        if self._is_folder:
            found = manifest.digest_of_records(archive, records_of(archive, names.MODEL))
        else:
            found = manifest.digest_of_records(archive, archive.get_file_names())
        if found != (facts.records if self._is_folder else self.digest):
            raise PipelineError(
                f"{facts.file or self._path.name} has changed since it was written with its "
                "manifest"
            )


@contextlib.contextmanager
def changes_named() -> Iterator[None]:
    """Run a block; raise a PipelineError if a file changes while the block reads it."""
    try:
        yield
    except ChangedFileError as error:
        raise PipelineError(str(error)) from error

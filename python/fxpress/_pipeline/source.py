"""Where stages are read from: a folder of files, or one archive."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from fxpress import _native
from fxpress._archive import names
from fxpress._archive.contents import read_parts
from fxpress._archive.load_options import Options
from fxpress._archive.reader import PT2ArchiveReader
from fxpress._pipeline.errors import PipelineError
from fxpress._pipeline.manifest import Manifest, StageFacts, read_manifest
from fxpress._serde.limits import Limits
from fxpress._stages.records import digest_of, records_of
from fxpress._stages.save import MANIFEST, program_name


class Source:
    """Stages that can be read one by one.

    Args:
        path: a folder or an archive that `save_stages` has written.
        limits: the limits on the cost of reading.

    Attributes:
        manifest: what is known of the stages.
        digest: of all that the stages consist of: equal where the files are.

    Raises:
        OSError: a file cannot be read.
        PipelineError: there are no stages at the path, or the manifest is damaged.
        fxpress.ArchiveError: the archive is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], limits: Limits | None = None) -> None:
        self.path, self._limits = Path(path), limits
        self._is_folder = self.path.is_dir()
        if self._is_folder:
            data = self._manifest_file().read_bytes()
        else:
            with self._opened(self.path) as archive:
                if archive.find(names.EXTRA_DIR + MANIFEST) is None:
                    raise PipelineError(f"{self.path} has no stages: save them with save_stages")
                data = archive.read_bytes(names.EXTRA_DIR + MANIFEST)
                self._records = digest_of(archive, archive.get_file_names())
        self.manifest: Manifest = read_manifest(data)
        self.digest = self.manifest.digest if self._is_folder else self._records

    def _manifest_file(self) -> Path:
        file = self.path / MANIFEST
        if not file.exists():
            raise PipelineError(f"{self.path} has no stages: there is no {MANIFEST} in it")
        return file

    def _opened(self, path: Path) -> PT2ArchiveReader:
        return PT2ArchiveReader(path, limits=self._limits)

    def file_of(self, number: int) -> Path:
        """Return the path of the file with a stage.

        Raises:
            PipelineError: the manifest names a file that is elsewhere.
        """
        if not self._is_folder:
            return self.path
        name = self.manifest.stages[number].file
        if name != Path(name).name or name in ("", ".", ".."):
            raise PipelineError(f"the manifest is damaged: {name!r} is not the name of a file")
        return self.path / name

    def program_of(self, number: int) -> str:
        """Return the name of a stage's program in its file."""
        return names.MODEL if self._is_folder else program_name(number)

    def load(self, number: int, options: Options) -> ExportedProgram:
        """Return the program of a stage; the records of other stages are not read.

        Raises:
            OSError: the file cannot be read.
            PipelineError: the file is not the one that was written with the manifest.
            fxpress.ArchiveError, fxpress.SerializeError, fxpress.LimitError: it is damaged.
        """
        path = self.file_of(number)
        model = self.program_of(number)
        options = Options(**{**vars(options), "path": os.fspath(path)})
        with self._opened(path) as archive:
            self._check(archive, self.manifest.stages[number])
            parts = read_parts(archive, model, options)
        with _native.GcPause():
            return parts.decode(options)

    def _check(self, archive: PT2ArchiveReader, facts: StageFacts) -> None:
        if self._is_folder:
            found, wanted = digest_of(archive, records_of(archive, names.MODEL)), facts.records
        else:
            found, wanted = digest_of(archive, archive.get_file_names()), self._records
        if found != wanted:
            raise PipelineError(
                f"{facts.file or self.path.name} has changed since it was written with its manifest"
            )


def options_of(device: Any, mmap: bool, load_weights: bool) -> Options:
    """Return the options that a stage is loaded with."""
    return Options(map_location=device, mmap=mmap, load_weights=load_weights)

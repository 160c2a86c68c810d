"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import os
import secrets
import stat
from pathlib import Path
from typing import Any

_MARK = ".fxpress-tmp"  # part of the names of files that are being written
_LONG = 200  # bytes of a name that leave room for the mark


def is_path(f: Any) -> bool:
    """Whether `f` names a file instead of being one."""
    return isinstance(f, (str, os.PathLike))


class AtomicFile:
    """A file that takes the place of another one when it is complete.

    It is written under another name in the same folder, and locked meanwhile: who writes next
    removes those of writers that were killed, which nobody holds a lock of. What is no regular file
    (a pipe, a device) is written to directly.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # A link stays a link: what it leads to is replaced.
        self._target = Path(os.path.realpath(os.fspath(path)))
        self._temporary: Path | None = None
        self.descriptor = -1
        mode = None
        with contextlib.suppress(FileNotFoundError):
            mode = self._target.stat().st_mode
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(21, os.strerror(21), str(path))
        if mode is not None and not stat.S_ISREG(mode):
            self.descriptor = os.open(self._target, os.O_WRONLY | os.O_CLOEXEC)
            return
        if mode is not None and not os.access(self._target, os.W_OK):
            raise PermissionError(13, os.strerror(13), str(path))
        self._remove_abandoned()
        self._temporary, self.descriptor = self._create(path)
        if mode is not None:
            with contextlib.suppress(OSError):  # a file system without modes
                os.fchmod(self.descriptor, stat.S_IMODE(mode))

    @property
    def name(self) -> str:
        """Where it is written now."""
        return str(self._temporary or self._target)

    def _prefix(self) -> str:
        name = self._target.name
        if len(os.fsencode(name)) > _LONG:
            name = hashlib.sha256(os.fsencode(name)).hexdigest()
        return f".{name}{_MARK}-"

    def _create(self, path: str | os.PathLike[str]) -> tuple[Path, int]:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        while True:
            temporary = self._target.with_name(self._prefix() + secrets.token_hex(4))
            try:
                descriptor = os.open(temporary, flags, 0o666)
            except FileExistsError:
                continue
            except OSError as e:
                raise type(e)(e.errno, e.strerror, os.fspath(path)) from None
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(temporary.stat(), os.fstat(descriptor)):
                    return temporary, descriptor
            os.close(descriptor)  # taken for an abandoned one before it was locked

    def _remove_abandoned(self) -> None:
        for found in self._target.parent.glob(f"{glob.escape(self._prefix())}*"):
            with contextlib.suppress(OSError):
                descriptor = os.open(found, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    found.unlink()
                finally:
                    os.close(descriptor)

    def reopen(self) -> None:
        """Somebody else has put another file where this one is written."""
        assert self._temporary is not None
        mode = stat.S_IMODE(os.fstat(self.descriptor).st_mode)
        os.close(self.descriptor)
        self.descriptor = -1
        self.descriptor = os.open(self._temporary, os.O_RDWR | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            os.fchmod(self.descriptor, mode)

    def __del__(self) -> None:
        if getattr(self, "descriptor", -1) >= 0:
            self.discard()

    def commit(self) -> None:
        """The file is complete: it is on the disk before the old one is gone."""
        if self._temporary is None:
            self._close()
            return
        try:
            os.fsync(self.descriptor)
            os.replace(self._temporary, self._target)
            self._temporary = None
        finally:
            self.discard()
        with contextlib.suppress(OSError):  # folders of some file systems cannot be synced
            folder = os.open(self._target.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def discard(self) -> None:
        """The file stays what it was. Does nothing after `commit`."""
        if self._temporary is not None:
            with contextlib.suppress(OSError):
                self._temporary.unlink()
            self._temporary = None
        self._close()

    def _close(self) -> None:
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)

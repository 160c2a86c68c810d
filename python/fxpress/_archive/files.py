"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

from fxpress._archive.folders import NOT_THERE, beside

_ACL = "system.posix_acl_access"
_COPIED = 1 << 20  # bytes at a time


def is_path(f: Any) -> bool:
    """Whether `f` names a file instead of being one."""
    return isinstance(f, (str, os.PathLike))


def is_target_path(f: Any) -> bool:
    """The same for what is written, where bytes are a path too."""
    return isinstance(f, (str, bytes, os.PathLike))


def _status(path: Path) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError):
        return path.stat()
    return None


class Output:
    """A file that is written: what the kinds of them have in common."""

    descriptor = -1

    def __init__(self, target: Path) -> None:
        self.target = target
        self._process = os.getpid()

    def __del__(self) -> None:
        self.discard()

    def sync(self) -> None:
        """The file is complete: what was written is on the disk when this returns."""
        os.fsync(self.descriptor)

    def put_in_place(self) -> None:
        """It takes its place. It has to be synced."""

    def is_in_place(self) -> bool:
        """Whether it has taken its place, also when the call that did it was interrupted.

        Raises:
            OSError: it cannot be told.
        """
        try:
            return os.path.samestat(os.fstat(self.descriptor), self.target.stat())
        except FileNotFoundError:
            return False

    def discard(self) -> None:
        """Gives up a file that is not in its place; otherwise only closes it."""
        with contextlib.suppress(OSError):  # what it says of the file matters to nobody
            self.close()

    def close(self) -> None:
        """Closes the descriptor. Does nothing the second time."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)


class DirectFile(Output):
    """A pipe or a device: what is written to it cannot be taken back."""

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        self.descriptor = os.open(target, os.O_WRONLY | os.O_CLOEXEC)

    def sync(self) -> None:
        """There is nothing to wait for."""


class AtomicFile(Output):
    """A file that takes the place of another one when it is complete.

    It is written under another name in the same folder, and locked meanwhile: who writes next
    removes those of writers that were killed, which nobody holds a lock of. It gets the mode, the
    access control list and, where this process may say so, the owner and group of the file that it
    replaces, or else what `open(path, "wb")` would give; never the bits setuid, setgid and sticky.

    Args:
        main: the file that this one belongs to, if it is another one than `target`: it says who
            may read and write both, and who writes it next removes what is left of both.
    """

    def __init__(self, target: Path, main: Path | None = None) -> None:
        super().__init__(target)
        self._temporary: Path | None = None
        self._main = main or target
        status = _status(self._main)
        try:
            self._create(0o666 if status is None else status.st_mode & 0o777)
            if status is not None:
                _take_rights(self.descriptor, self._main, status)
        except BaseException:
            self.discard()
            raise

    def _create(self, mode: int) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        while True:
            temporary = beside(self._main)
            try:
                self.descriptor = os.open(temporary, flags, mode)
            except FileExistsError:
                continue
            self._temporary = temporary
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            except OSError as e:  # without its lock others take it for abandoned, if there are any
                if e.errno not in NOT_THERE:
                    raise
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(temporary.stat(), os.fstat(self.descriptor)):
                    return
            self.close()  # taken for an abandoned one before it was locked

    def put_in_place(self) -> None:
        """It takes its place. It has to be synced."""
        assert self._temporary is not None
        os.replace(self._temporary, self.target)
        self._temporary = None

    def discard(self) -> None:
        """The file stays what it was. Does nothing when it is in its place.

        A child of the process that writes, made by a fork, leaves the file alone.
        """
        temporary = getattr(self, "_temporary", None)
        if temporary is not None and self._process == os.getpid():
            with contextlib.suppress(OSError):
                temporary.unlink()
        self._temporary = None
        super().discard()


class InPlaceFile(Output):
    """A file whose bytes are replaced when the new ones are complete, by those of a file that has
    no name. Handles and other links of the file see them; an interrupted copy leaves neither.
    """

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        # Before anything is done: whether it may be written. Made now if it is not there.
        self._written = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self.descriptor = self._unnamed()
        except BaseException:
            self.discard()
            raise

    def _unnamed(self) -> int:
        try:
            with tempfile.TemporaryFile(dir=self.target.parent) as file:
                return os.dup(file.fileno())
        except OSError:  # a folder in which nothing can be made
            with tempfile.TemporaryFile() as file:
                return os.dup(file.fileno())

    def sync(self) -> None:
        """Nothing is known of the copy yet."""

    def put_in_place(self) -> None:
        """Copies the bytes into the file, when there is room for them."""
        old, new = os.fstat(self._written).st_size, os.fstat(self.descriptor).st_size
        _reserve(self._written, old, new)
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        with (
            open(self.descriptor, "rb", closefd=False) as source,
            open(self._written, "wb", closefd=False) as target,
        ):
            shutil.copyfileobj(source, target, _COPIED)
        os.ftruncate(self._written, new)
        os.fsync(self._written)

    def close(self) -> None:
        """Closes both descriptors. Does nothing the second time."""
        if getattr(self, "_written", -1) >= 0:
            descriptor, self._written = self._written, -1
            os.close(descriptor)
        super().close()


def _reserve(descriptor: int, old: int, new: int) -> None:
    """Room on the disk for a file that grows; OSError when there is none, and it stays as it is."""
    if new <= old:
        return
    try:
        os.posix_fallocate(descriptor, 0, new)
    except OSError as e:
        if e.errno in NOT_THERE:
            return  # only the copy tells
        os.ftruncate(descriptor, old)
        raise


def open_output(path: str | os.PathLike[str], *, in_place: bool = False) -> Output:
    """A file to write.

    Args:
        path: a link stays a link: what it leads to is replaced.
        in_place: an `InPlaceFile` instead of an `AtomicFile`; what is no regular file is written to
            directly.

    Raises:
        OSError: it cannot be written. It names `path`.
        ValueError: `path` has a null character.
    """
    target = Path(os.path.realpath(os.fspath(path)))
    try:
        status = _status(target)
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if status is not None and not stat.S_ISREG(status.st_mode):
            return DirectFile(target)
        if status is not None and not os.access(target, os.W_OK):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        return InPlaceFile(target) if in_place else AtomicFile(target)
    except OSError as e:
        raise OSError(e.errno, e.strerror, os.fspath(path)) from None


def _take_rights(descriptor: int, path: Path, status: os.stat_result) -> None:
    """Give a new file the owner, group and mode of the file that it replaces, where allowed."""
    mode = status.st_mode & 0o777
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.fchown(descriptor, status.st_uid, status.st_gid)
        except OSError:
            try:
                os.fchown(descriptor, -1, status.st_gid)
            except (
                OSError
            ):  # another group, which gets no more rights than everybody
                mode &= 0o707 | (mode & 0o007) << 3
    with contextlib.suppress(OSError):  # a file system without modes
        os.fchmod(descriptor, mode)
    _copy_list(descriptor, path)


def _copy_list(descriptor: int, path: Path) -> None:
    """The access control list of a file, also that it has none."""
    try:
        entries = os.getxattr(path, _ACL)
    except (OSError, AttributeError):  # there is none, or no such lists at all
        with contextlib.suppress(OSError, AttributeError):  # the folder may have given it one
            os.removexattr(descriptor, _ACL)
        return
    with contextlib.suppress(OSError):
        os.setxattr(descriptor, _ACL, entries)

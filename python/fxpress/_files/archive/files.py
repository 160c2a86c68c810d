"""Write files that appear at their paths when complete. This module does not import torch."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

from fxpress._files.archive.folders import UNSUPPORTED, remove_left, sync_folder, temporary_path
from fxpress._files.remote.urls import shown

_ACL = "system.posix_acl_access"
_COPIED = 1 << 20  # bytes that are copied at a time
# Paths of descriptors of this process, such as /dev/stdout. An unnamed pipe has no other path.
_DESCRIPTOR = re.compile(r"/dev/std(?P<name>out|err)|/(?:dev|proc/self)/fd/(?P<number>\d{1,9})")


def is_path(f: Any) -> bool:
    """Return whether `f` is a path, and not a file object or the contents of a file."""
    return isinstance(f, (str, bytes, os.PathLike))


def source_path(f: Any, *, mmap: bool = False) -> str | None:
    """Return a path as a str; None for a file object or buffer. ValueError for a zip's bytes."""
    if not is_path(f):
        if mmap:
            raise ValueError("mmap=True maps the file, so f must be a path")
        return None
    if isinstance(f, bytes) and f.startswith(b"PK"):
        raise ValueError(
            "expected a path, got the contents of a zip file: pass them as a bytearray, "
            "a memoryview or io.BytesIO"
        )
    path = os.fsdecode(f)
    if "://" in path and not os.path.exists(path):
        what = f"{os.strerror(errno.ENOENT)} on this machine"
        raise FileNotFoundError(errno.ENOENT, what, shown(path))
    return path


def sizes_of_file(f: Any) -> dict[str, int]:
    """Return {"bytes": size of a file} for the log; an empty dict if the size is unknown."""
    if is_path(f):
        return {"bytes": os.path.getsize(f)}
    if hasattr(f, "getbuffer"):
        return {"bytes": f.getbuffer().nbytes}
    return {}


def _status(path: Path) -> os.stat_result | None:
    with contextlib.suppress(FileNotFoundError):
        return path.stat()
    return None


class Output:
    """The base class of output files."""

    descriptor = -1

    def __init__(self, target: Path) -> None:
        self.target = target
        self._process = os.getpid()

    def __del__(self) -> None:
        self.discard()

    def sync(self) -> None:
        """Write the bytes to the disk before `move_into_place`; only an `AtomicFile` needs this."""

    def move_into_place(self) -> None:
        """Move or copy the complete file to its path; do nothing for a pipe or a device."""

    def is_in_place(self) -> bool:
        """Return whether the file is at its path. This works after an interrupted move, too."""
        try:
            return os.path.samestat(os.fstat(self.descriptor), self.target.stat())
        except FileNotFoundError:
            return False

    def discard(self) -> None:
        """Close the file. An `AtomicFile` that was not moved to its path is removed, too."""
        with contextlib.suppress(OSError):  # errors do not matter, because the file is not needed
            self.close()

    def close(self) -> None:
        """Close the descriptor, unless it is closed already."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)


class DirectFile(Output):
    """A pipe or a device, to which bytes are written directly."""

    def __init__(self, target: Path, descriptor: int | None = None) -> None:
        super().__init__(target)
        flags = os.O_WRONLY | os.O_CLOEXEC
        self.descriptor = os.open(target, flags) if descriptor is None else os.dup(descriptor)


class AtomicFile(Output):
    """A file that replaces `target` when it is complete. It gets the permissions of the old file.

    Until then it is a locked temporary file in the same folder. A killed writer leaves a temporary
    file without a lock, which the next writer of `target` removes. A sidecar file contains the
    weights of the archive `main`; permissions and temporary name are derived from the archive's.
    """

    def __init__(self, target: Path, main: Path | None = None) -> None:
        super().__init__(target)
        self.temporary: Path | None = None  # the path of the file until it is moved
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
            temporary = temporary_path(self._main)
            try:
                self.descriptor = os.open(temporary, flags, mode)
            except FileExistsError:
                continue
            self.temporary = temporary
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX)
            except OSError as e:  # without locks, other writers remove no temporary files
                if e.errno not in UNSUPPORTED:
                    raise
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(temporary.stat(), os.fstat(self.descriptor)):
                    return
            self.close()  # another writer removed the file before it was locked

    def sync(self) -> None:
        """Write the complete file to the disk before returning."""
        os.fsync(self.descriptor)

    def move_into_place(self) -> None:
        """Move the file, which must have been synced, to its path."""
        assert self.temporary is not None
        os.replace(self.temporary, self.target)
        self.temporary = None

    def discard(self) -> None:
        """Remove the temporary file unless it has been moved; in a forked child, only close it."""
        temporary = getattr(self, "temporary", None)
        if temporary is not None and self._process == os.getpid():
            with contextlib.suppress(OSError):
                temporary.unlink()
        self.temporary = None
        super().discard()


class InPlaceFile(Output):
    """A file that is overwritten by the complete new bytes; hard links and handles stay valid.

    If the overwrite is interrupted, the old bytes are lost, and the new bytes are incomplete.
    """

    def __init__(self, target: Path) -> None:
        super().__init__(target)
        # Opening the target checks that it is writable, and creates the file if it is missing.
        self._written = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self.descriptor = self._open_unnamed()
        except BaseException:
            self.discard()
            raise

    def _open_unnamed(self) -> int:
        """Return the descriptor of a new file without a name, to which the bytes are written."""
        try:
            with tempfile.TemporaryFile(dir=self.target.parent) as file:
                return os.dup(file.fileno())
        except OSError:  # no file can be created in the folder
            with tempfile.TemporaryFile() as file:
                return os.dup(file.fileno())

    def move_into_place(self) -> None:
        """Reserve space, then copy the new bytes into the file at the path, and sync the file."""
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
        """Close the descriptors of the file and of the new bytes, unless they are closed."""
        if getattr(self, "_written", -1) >= 0:
            descriptor, self._written = self._written, -1
            os.close(descriptor)
        super().close()


def _reserve(descriptor: int, old: int, new: int) -> None:
    """Reserve disk space for a file that grows. Without space, raise OSError and change nothing."""
    if new <= old:
        return
    try:
        os.posix_fallocate(descriptor, 0, new)
    except OSError as e:
        if e.errno in UNSUPPORTED:
            return  # the copy raises the error if the space does not suffice
        os.ftruncate(descriptor, old)
        raise


def open_output(path: str | bytes | os.PathLike[str], *, in_place: bool = False) -> Output:
    """Return a `DirectFile` for a device or a pipe, else an `InPlaceFile` or an `AtomicFile`."""
    # If the path is a symbolic link, the link's target is replaced.
    target = Path(os.path.realpath(os.fsdecode(path)))
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
        raise OSError(e.errno, e.strerror, os.fsdecode(path)) from None


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all bytes to a descriptor."""
    while data:
        data = data[os.write(descriptor, data) :]


def write_file(path: str | bytes | os.PathLike[str], content: str | bytes) -> None:
    """Write and sync a file. On an OSError, which names the file, the old file is unchanged.

    Pipes, devices and descriptors of this process, such as /dev/stdout, are written directly.
    """
    data = memoryview(content.encode() if isinstance(content, str) else content)
    name = os.fsdecode(path)
    own = _DESCRIPTOR.fullmatch(name)
    file: Output | None = None
    try:
        if own is not None:
            number = own["number"] or ("out", "err").index(own["name"]) + 1
            file = DirectFile(Path(name), int(number))
        else:
            remove_left(Path(os.path.realpath(name)))
            file = open_output(path)
        write_all(file.descriptor, data)
        file.sync()
        file.move_into_place()
        if isinstance(file, AtomicFile):
            sync_folder(file.target.parent)
    except OSError as e:
        raise OSError(e.errno, e.strerror, name) from None
    finally:
        if file is not None:
            file.discard()


def _take_rights(descriptor: int, path: Path, status: os.stat_result) -> None:
    """Give a new file the owner, group and mode of the replaced file, as far as allowed."""
    mode = status.st_mode & 0o777
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.fchown(descriptor, status.st_uid, status.st_gid)
        except OSError:
            try:
                os.fchown(descriptor, -1, status.st_gid)
            except OSError:  # the new file's group gets at most the rights of others
                mode &= 0o707 | (mode & 0o007) << 3
    with contextlib.suppress(OSError):  # the file system does not support modes
        os.fchmod(descriptor, mode)
    _copy_list(descriptor, path)


def _copy_list(descriptor: int, path: Path) -> None:
    """Copy an access control list to a new file; if `path` has none, remove the new file's list."""
    try:
        entries = os.getxattr(path, _ACL)
    except (OSError, AttributeError):  # there is no list, or lists are not supported
        with contextlib.suppress(OSError, AttributeError):  # the new file may have inherited a list
            os.removexattr(descriptor, _ACL)
        return
    with contextlib.suppress(OSError):
        os.setxattr(descriptor, _ACL, entries)

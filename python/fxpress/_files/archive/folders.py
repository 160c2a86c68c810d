"""Name temporary files, lock folders, and create folders that appear when they are complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

# Errors of calls that a file system does not support.
UNSUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_MARK = ".fxpress-tmp"  # part of the names of temporary files
_MOST_NAME_BYTES = 200  # of the 255 bytes of a file name, 55 are for prefixes and suffixes
_LOCK_TIMEOUT = 10.0  # seconds
_LOCK_POLL_INTERVAL = 0.002  # seconds


def short(name: str) -> str:
    """Return the name of a file, or the hash of the name if it is too long for a suffix."""
    if len(os.fsencode(name)) <= _MOST_NAME_BYTES:
        return name
    return hashlib.sha256(os.fsencode(name)).hexdigest()


def _prefix(target: Path) -> str:
    return f".{short(target.name)}{_MARK}-"


def temporary_path(target: Path) -> Path:
    """Return a new path for a file that exists only while `target` is written or replaced."""
    return target.with_name(_prefix(target) + secrets.token_hex(4))


def find_abandoned(target: Path) -> Iterator[Path]:
    """Lock and yield each temporary file that a killed writer of `target` left."""
    start = _prefix(target)
    for name in os.listdir(target.parent):
        if not name.startswith(start):
            continue
        path = target.with_name(name)
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield path
            finally:
                os.close(descriptor)


def remove_left(target: Path) -> None:
    """Remove the temporary files and folders that killed writers of `target` left."""
    with contextlib.suppress(OSError):
        for path in find_abandoned(target):
            with contextlib.suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def sync_folder(folder: Path) -> None:
    """Write the entries of a folder to the disk before returning."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as e:
        if e.errno not in UNSUPPORTED:
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Lock a folder against other saves during the block; if that fails, run the block anyway."""
    if _MARK in folder.name:  # `new_folder` has created and locked the folder
        yield
        return
    try:
        # The lock is on the folder itself, so that no lock file remains.
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        yield
        return
    try:
        _try_to_lock(descriptor)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def _try_to_lock(descriptor: int) -> None:
    end = time.monotonic() + _LOCK_TIMEOUT
    while time.monotonic() < end:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_POLL_INTERVAL)
        except OSError:
            return
        else:
            return


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder, and rename it to `target` after the block.

    FileExistsError if `target` exists and is not an empty folder. The temporary folder is locked.
    Other writers remove unlocked temporary folders, because killed writers left them.
    """
    target = Path(os.path.realpath(target))  # a symbolic link stays, and its target is replaced
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    remove_left(target)
    place, descriptor = _locked_new_folder(target)
    try:
        yield place
        sync_folder(place)
        place.rename(target)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)
    sync_folder(target.parent)


def _locked_new_folder(target: Path) -> tuple[Path, int]:
    """Create a folder next to `target`; return its path, and the descriptor that locks it."""
    while True:
        place = temporary_path(target)
        place.mkdir()
        # Another writer may remove the folder before it is locked; then the loop runs again.
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # the file system does not support locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if place.exists():
                return place, descriptor
            os.close(descriptor)

"""An object store for fsspec that counts reads, and can simulate failures."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

SCHEME = "counted"
_lock = threading.Lock()


class Store(AbstractFileSystem):
    """Objects in memory, by their paths.

    Attributes:
        objects: path -> bytes.
        ranges: path, begin and end of each request for bytes.
        asked: the number of requests for sizes.
        answer: given a path, the bytes of a range and the number of the request, returns the bytes
            that the store gives.
        size: given a path and the size, returns the size that the store reports.
    """

    protocol = SCHEME
    cachable = False
    objects: ClassVar[dict[str, bytes]] = {}
    ranges: ClassVar[list[tuple[str, int, int]]] = []
    asked = 0
    answer: Callable[[str, bytes, int], bytes] | None = None
    size: Callable[[str, int], Any] | None = None

    @classmethod
    def empty(cls) -> None:
        """Forget everything."""
        cls.objects, cls.ranges, cls.asked = {}, [], 0
        cls.answer = cls.size = None

    @classmethod
    def forget(cls) -> None:
        """Reset the counts."""
        cls.ranges, cls.asked = [], 0

    @classmethod
    def put(cls, local: Path, place: str) -> str:
        """Store a file or the files of a folder, and return the URL."""
        if local.is_dir():
            for each in local.iterdir():
                cls.objects[f"{place}/{each.name}"] = each.read_bytes()
        else:
            cls.objects[place] = local.read_bytes()
        return f"{SCHEME}://{place}"

    @classmethod
    def read(cls) -> int:
        """Return how many bytes were read."""
        return sum(end - begin for _, begin, end in cls.ranges)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        Store.asked += 1
        if path not in Store.objects:
            raise FileNotFoundError(path)
        data = Store.objects[path]
        size = len(data) if Store.size is None else Store.size(path, len(data))
        return {"name": path, "type": "file", "size": size, "ETag": f"{hash(data)}"}

    def exists(self, path: str, **_: Any) -> bool:
        start = self._strip_protocol(path)
        return any(name == start or name.startswith(f"{start}/") for name in Store.objects)

    def put_file(self, lpath: str, rpath: str, *_: Any, **__: Any) -> None:
        Store.objects[self._strip_protocol(rpath)] = Path(lpath).read_bytes()

    def rm_file(self, path: str) -> None:
        del Store.objects[self._strip_protocol(path)]

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **options: Any) -> Any:
        return _Object(self, path, mode, **options)


class _Object(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        with _lock:  # several threads read
            number = len(Store.ranges)
            Store.ranges.append((self.path, start, end))
        data = Store.objects[self.path][start:end]
        return data if Store.answer is None else Store.answer(self.path, data, number)


fsspec.register_implementation(SCHEME, Store, clobber=True)

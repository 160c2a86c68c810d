"""Archives that an object with `size` and `read(begin, end)` gives, range by range."""

from __future__ import annotations

import ctypes
import io

import pytest

from fxpress import _native

RECORDS = {"first": b"1" * 3_000, "large": bytes(range(256)) * 4_096, "empty": b""}


class Ranges:
    """Keeps a list of the ranges that are read."""

    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)
        self.asked: list[tuple[int, int]] = []

    def read(self, begin: int, end: int) -> bytes:
        self.asked.append((begin, end))
        return self.data[begin:end]


def archive(records: dict[str, bytes] = RECORDS) -> bytes:
    file = io.BytesIO()
    writer = _native.ArchiveWriter(file.write, "root")
    for name, data in records.items():
        writer.add(name, data)
    writer.finish()
    return file.getvalue()


def test_the_same_records_as_from_memory() -> None:
    data = archive()
    expected = _native.ArchiveReader(data)
    reader = _native.ArchiveReader(Ranges(data))
    assert {name: entry[1:] for name, entry in reader.records().items()} == {
        name: entry[1:] for name, entry in expected.records().items()
    }
    for name, (offset, *_) in expected.records().items():
        assert reader.stored_bytes(name) == expected.stored_bytes(name)
        assert reader.offset(name) == expected.offset(name) == offset
        assert reader.extent(name) == expected.extent(name)
    assert reader.records() == expected.records()


def test_one_range_for_the_directory_and_two_for_a_record() -> None:
    data = archive()
    source = Ranges(data)
    reader = _native.ArchiveReader(source)
    assert len(source.asked) == 1
    begin, end = reader.extent("large")
    assert len(source.asked) == 1
    for _ in range(2):
        assert reader.stored_bytes("large") == RECORDS["large"]
    assert len(source.asked) == 4  # the header, and the data each time
    assert all(begin <= first <= last <= end for first, last in source.asked[1:])
    assert data[begin : begin + 4] == b"PK\3\4"


def test_a_directory_that_is_longer_than_the_end_that_is_read_first() -> None:
    data = archive({f"{i:0300}": b"" for i in range(1_000)})
    source = Ranges(data)
    reader = _native.ArchiveReader(source)
    assert len(reader.records()) == 1_003
    assert len(source.asked) == 2
    (begin, end), (rest_begin, rest_end) = source.asked
    assert end == len(data)
    assert rest_begin < rest_end == begin  # nothing is read twice


@pytest.mark.parametrize("threads", [1, 3])
def test_parts_are_read_in_large_pieces_also_by_threads(threads: int) -> None:
    record = bytes(range(251)) * 200_000
    source = Ranges(archive({"large": record}))
    reader = _native.ArchiveReader(source)
    memory = ctypes.create_string_buffer(len(record))
    target = ("large", 0, len(record), ctypes.addressof(memory))
    assert reader.read_into([target], True, threads) == [_native.crc32(record)]
    assert memory.raw == record
    assert len(source.asked) <= 2 + -(-len(record) // (16 << 20))


def test_a_header_is_compared_when_its_record_is_used() -> None:
    data = bytearray(archive())
    begin, _ = _native.ArchiveReader(bytes(data)).extent("large")
    data[begin + 30 : begin + 34] = b"toor"
    with pytest.raises(_native.ArchiveError, match="record 'root/large' is damaged"):
        _native.ArchiveReader(bytes(data))
    reader = _native.ArchiveReader(Ranges(bytes(data)))
    assert reader.stored_bytes("first") == RECORDS["first"]
    for _ in range(2):
        with pytest.raises(_native.ArchiveError, match="its header belongs to 'toor/large'"):
            reader.stored_bytes("large")


def test_records_that_share_bytes() -> None:
    data = archive({"a": b"", "b": b""})
    with pytest.raises(_native.ArchiveError, match=r"overlaps|out of range"):
        end = data.rindex(b"root/b")  # the entry of the directory, which names a's header
        _native.ArchiveReader(Ranges(data[: end - 4] + bytes(4) + data[end:]))


class Short(Ranges):
    def read(self, begin: int, end: int) -> bytes:
        return super().read(begin, end)[:-1]


class Broken(Ranges):
    def read(self, begin: int, end: int) -> bytes:
        raise ConnectionError("gone")


def test_errors_of_the_object_pass_through() -> None:
    with pytest.raises(OSError, match=r"read\(\) returned \d+ bytes, expected \d+"):
        _native.ArchiveReader(Short(archive()))
    with pytest.raises(ConnectionError, match="gone"):
        _native.ArchiveReader(Broken(archive()))
    with pytest.raises(_native.ArchiveError):
        _native.ArchiveReader(Ranges(b""))
    source = Ranges(archive({"large": bytes(50 << 20)}))
    reader = _native.ArchiveReader(source)
    source.read = Broken(b"").read  # type: ignore[method-assign]
    assert reader.stored_bytes("large") == bytes(50 << 20)  # the method was looked up once

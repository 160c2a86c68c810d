"""Tricks with the zip format, and with the names of records."""

from __future__ import annotations

import functools
import io
import struct
import zipfile
import zlib

from tests.fuzz.hostile.cases import (
    MODEL,
    SAMPLES,
    WEIGHTS,
    add,
    hostile,
    read_contents,
    records_of,
    written,
)
from tests.support.records import write_records
from tests.support.sentinel import MODULE


def _base() -> bytes:
    return write_records(records_of("keys"))


def _patched(signature: bytes, offset: int, value: bytes) -> bytes:
    """The archive with other bytes in one of its headers; there are such in its records too."""
    data = bytearray(_base())
    end = data.rindex(_END)
    (directory_at,) = struct.unpack_from("<I", data, end + 16)
    at = {_END: end, _CENTRAL: directory_at, _LOCAL: 0}[signature]
    assert data.startswith(signature, at)
    data[at + offset : at + offset + len(value)] = value
    return bytes(data)


_LOCAL, _CENTRAL, _END = b"PK\3\4", b"PK\1\2", b"PK\5\6"
# Header, offset of a field in it, its value.
_HEADERS = {
    "size-of-four-gigabytes": (_CENTRAL, 24, b"\xfe\xff\xff\xff"),
    "stored-size-of-four-gigabytes": (_CENTRAL, 20, b"\xfe\xff\xff\xff"),
    "size-in-a-missing-zip64-field": (_CENTRAL, 24, b"\xff\xff\xff\xff"),
    "offset-beyond-the-end": (_CENTRAL, 42, b"\xf0\xff\xff\x7f"),
    "offset-into-the-directory": (_END, 16, b"\0\0\0\0"),
    "name-longer-than-the-file": (_CENTRAL, 28, b"\xff\xff"),
    "comment-longer-than-the-file": (_CENTRAL, 32, b"\xff\xff"),
    "extra-longer-than-the-file": (_LOCAL, 28, b"\xff\xff"),
    "method-that-nobody-knows": (_CENTRAL, 10, b"\x63\0"),
    "encrypted": (_CENTRAL, 8, b"\1\0"),
    "many-records": (_END, 10, b"\xff\xff"),
    "no-records": (_END, 10, b"\0\0"),
    "other-disk": (_END, 4, b"\7\0"),
    "size-of-the-directory": (_END, 12, b"\xff\xff\xff\x7f"),
    "checksum": (_CENTRAL, 16, b"\1\2\3\4"),
}
_LOAD = {"extra-longer-than-the-file", "other-disk"}
for _name, (_signature, _offset, _value) in _HEADERS.items():
    _make = functools.partial(_patched, _signature, _offset, _value)
    _message = "encrypted" if _name == "encrypted" else ""
    add(f"zips-{_name}", _make, "either" if _name in _LOAD else "refused", message=_message)


def entry(name: bytes, offset: int, crc: int, stored: int, size: int, method: int = 0) -> bytes:
    """An entry of a zip's directory."""
    fixed = struct.pack(
        "<4s6H3I5H2I",
        _CENTRAL,
        20,
        20,
        0,
        method,
        0,
        33,
        crc,
        stored,
        size,
        *(len(name), 0, 0, 0, 0, 0, offset),
    )
    return fixed + name


def directory(records: bytes, entries: list[bytes]) -> bytes:
    """A zip file: records, the directory, its end."""
    body = b"".join(entries)
    count = len(entries)
    end = struct.pack("<4s4H2IH", _END, 0, 0, count, count, len(body), len(records), 0)
    return records + body + end


def local(name: bytes, crc: int, stored: int, size: int, method: int = 0) -> bytes:
    """The header in front of a record."""
    return (
        struct.pack("<4s5H3I2H", _LOCAL, 20, 0, method, 0, 33, crc, stored, size, len(name), 0)
        + name
    )


@hostile("refused")
def overlapping_records() -> bytes:
    """Every name of an archive leads to one record."""
    data = zipfile.ZipFile(io.BytesIO(_base())).getinfo(MODEL)
    body = _base()
    names = [name.encode() for name in records_of("keys")]
    size, crc = data.file_size, data.CRC
    return directory(body, [entry(n, data.header_offset, crc, size, size) for n in names])


@hostile("refused", message=r"model\.json")
def names_that_are_twice_there() -> bytes:
    body = _base()
    info = zipfile.ZipFile(io.BytesIO(body)).getinfo(MODEL)
    each = entry(MODEL.encode(), info.header_offset, info.CRC, info.file_size, info.file_size)
    return directory(body, [each, each])


@hostile("refused")
def directory_within_a_record() -> bytes:
    return write_records({"archive/data/x": _base()})


@hostile("refused")
def end_of_directory_only() -> bytes:
    return _END + bytes(18)


@hostile("refused")
def empty_file() -> bytes:
    return b""


@hostile("refused")
def zip64_end_that_points_to_itself() -> bytes:
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, 0, 1)
    end = struct.pack("<4s4H2IH", _END, 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return locator + end


def _renamed(old: str, new: str) -> bytes:
    records = {new if n == old else n: content for n, content in records_of("keys").items()}
    return write_records(records)


_NAMES = {
    "up": f"../{MODEL}",
    "absolute": f"/{MODEL}",
    "backslash": MODEL.replace("/", "\\"),
    "other-folder": MODEL.replace("archive/", "other/"),
    "nul": f"{MODEL}\0.txt",  # zipfile writes no more than what is in front of it
    "empty": "",
    "long": f"archive/models/{'x' * 60000}.json",
    "code": f"archive/models/__import__('{MODULE}').hit().json",
}
for _name, _new in _NAMES.items():
    _wanted = "either" if _name in ("backslash", "long", "code", "nul") else "refused"
    _make = functools.partial(_renamed, MODEL, _new)
    add(f"zips-name-{_name}", _make, _wanted, read=read_contents)


@hostile("either", read=read_contents)
def models_with_hostile_names() -> bytes:
    records = records_of("keys")
    name = f"x' + __import__('{MODULE}').hit() + '"
    return write_records({key.replace("model", name): value for key, value in records.items()})


@hostile("either")
def extra_files_with_hostile_names() -> bytes:
    names = ["../../etc/x", f"__import__('{MODULE}').hit()", "", "\n", "{0.__class__}"]
    return written("keys", {f"archive/extra/{name}": b"text" for name in names})


@hostile("refused")
def extra_files_that_are_no_text() -> bytes:
    return written("keys", {"archive/extra/notes": b"\xff\xfe"})


@hostile("refused")
def version_of_the_archive() -> bytes:
    return written("keys", {"archive/archive_version": f"__import__('{MODULE}').hit()".encode()})


@hostile("either")
def version_of_the_records() -> bytes:
    return written("keys", {"archive/.data/version": b"9" * 6000})


@hostile("refused")
def format_of_the_archive() -> bytes:
    return written("keys", {"archive/archive_format": b"__import__('os')"})


@hostile("either")
def byte_order() -> bytes:
    return written("keys", {"archive/byteorder": f"__import__('{MODULE}')".encode()})


@hostile("either")
def byte_order_of_another_machine() -> bytes:
    return written("keys", {"archive/byteorder": b"big"})


@hostile("refused")
def old_format_with_a_hostile_version() -> bytes:
    return write_records(
        {"version": b"9" * 100000 + b".1", "serialized_exported_program.json": b""}
    )


@hostile("refused")
def old_format_with_two_bad_numbers() -> bytes:
    return write_records({"version": b"x.__class__", "serialized_exported_program.json": b"{}"})


@hostile("refused", read=read_contents)
def compiled_code() -> bytes:
    """A shared library among the records, which the system would load."""
    folder = "archive/data/aotinductor/model/"
    return written(
        "keys",
        {
            f"{folder}model.wrapper.so": b"\x7fELF" + bytes(60),
            f"{folder}model.wrapper_metadata.json": {"AOTI_DEVICE_KEY": "cpu"},
        },
    )


@hostile("refused", read=read_contents)
def compiled_code_with_a_path() -> bytes:
    return written("keys", {"archive/data/aotinductor/../../x/model.so": b"\x7fELF" + bytes(60)})


@hostile("refused", read=read_contents)
def compiled_code_as_source() -> bytes:
    source = b"__attribute__((constructor)) void f() { __builtin_trap(); }"
    return written("keys", {"archive/data/aotinductor/model/model.wrapper.cpp": source})


@hostile("either", read=read_contents)
def executorch_program() -> bytes:
    return written("keys", {"archive/data/executorch/model.pte": b"\0" * 64})


@functools.cache
def deflated(count: int) -> bytes:
    """Zeros in deflate's format, 258 for each 13 bits: by hand, so that no zlib decides."""
    bits = "1" + "10" + "00110000"  # a last block with the fixed codes; a zero
    pair = "11000101" + "00000"  # 258 bytes from one byte back
    text = bits + pair * (count // 258) + "0000000"
    text += "0" * (-len(text) % 8)
    return bytes(int(text[i : i + 8][::-1], 2) for i in range(0, len(text), 8))


def _zeros(record: str, count: int) -> bytes:
    """A record that unpacks to zeros; its checksum is wrong, which shows at the end at best."""
    body = _base()
    name = record.encode()
    stored = deflated(count)
    size = 1 + count // 258 * 258
    head = local(name, 0, len(stored), size, 8)
    infos = [i for i in zipfile.ZipFile(io.BytesIO(body)).infolist() if i.filename != record]
    entries = [
        entry(i.filename.encode(), i.header_offset, i.CRC, i.compress_size, i.file_size)
        for i in infos
    ]
    entries.append(entry(name, len(body), 0, len(stored), size, 8))
    return directory(body + head + stored, entries)


for _name, _record in {
    "model": MODEL,
    "weights": WEIGHTS,
    "samples": SAMPLES,
    "version": "archive/archive_version",
    "extra-file": "archive/extra/notes",
}.items():
    add(f"zips-deflated-{_name}", functools.partial(_zeros, _record, 1 << 28), "refused")


@hostile("refused")
def many_extra_files_in_one_place() -> bytes:
    """20,000 names of one record of 100 kB: as extra files they would be 2 GB."""
    content = b"x" * 100_000
    crc = zlib.crc32(content)
    head = local(b"archive/extra/x", crc, len(content), len(content))
    body = _base()
    infos = zipfile.ZipFile(io.BytesIO(body)).infolist()
    entries = [
        entry(i.filename.encode(), i.header_offset, i.CRC, i.file_size, i.file_size) for i in infos
    ]
    entries += [
        entry(f"archive/extra/{i}".encode(), len(body), crc, len(content), len(content))
        for i in range(20000)
    ]
    return directory(body + head + content, entries)

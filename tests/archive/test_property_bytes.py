"""Archives with changed bytes are read, or refused with an error that reports the damage."""

from __future__ import annotations

import functools
import io
import logging
import zipfile

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.export import export

import fxpress
from fxpress import archive
from tests.support.archived import records_of, rewritten, saved_by_us
from tests.support.generated import examples

OPTIONS = examples(100)
# An archive is damaged, or has something that fxpress does not support.
REFUSED = (fxpress.SerializeError, fxpress.UnsupportedError)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)
        self.turned = torch.nn.Parameter(self.linear.weight.t())
        self.constant = torch.ones(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x + self.constant) + (x @ self.turned.t().t())


@functools.cache
def saved() -> bytes:
    return saved_by_us(export(Model(), (torch.ones(1, 2),)))


def load(data: bytes, *, check_crc: bool) -> None:
    logging.disable(logging.WARNING)
    try:
        archive.load(io.BytesIO(data), check_crc=check_crc)
    except REFUSED:
        return
    finally:
        logging.disable(logging.NOTSET)


@OPTIONS
@given(st.data(), st.booleans())
def test_bytes_that_were_changed(data: st.DataObject, check_crc: bool) -> None:
    changed = bytearray(saved())
    for at in data.draw(st.lists(st.integers(0, len(changed) - 1), min_size=1, max_size=4)):
        changed[at] = data.draw(st.integers(0, 255))
    load(bytes(changed), check_crc=check_crc)


@OPTIONS
@given(st.data())
def test_configs_in_which_bytes_were_changed(data: st.DataObject) -> None:
    records = records_of(saved())
    name = data.draw(st.sampled_from([name for name in records if name.endswith("config.json")]))
    text = bytearray(records[name])
    for at in data.draw(st.lists(st.integers(0, len(text) - 1), min_size=1, max_size=3)):
        text[at : at + 1] = data.draw(st.sampled_from([b"9", b"-", b"0", b"", b"1e9", b'"', b"}"]))
    load(rewritten(saved(), {name: bytes(text)}), check_crc=True)


@OPTIONS
@given(st.binary(max_size=400), st.sampled_from([b"", b"PK\x05\x06", b"PK\x03\x04", b"PK\x06\x06"]))
def test_bytes_that_are_no_archive(data: bytes, start: bytes) -> None:
    load(start + data, check_crc=True)


NOT_IN_NAMES = "".join(map(chr, range(32))) + "\x7f\\"  # in names of records


@OPTIONS
@given(
    st.dictionaries(
        st.text(
            st.characters(exclude_categories=["Cs"], exclude_characters=NOT_IN_NAMES), min_size=1
        ).filter(lambda name: not {"", ".", ".."} & set(name.split("/"))),
        st.binary(max_size=100),
        max_size=5,
    ),
    st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
)
def test_any_records_come_back(records: dict[str, bytes], method: int) -> None:
    buffer = io.BytesIO()
    with archive.PT2ArchiveWriter(buffer) as writer:
        for name, content in records.items():
            writer.write_bytes(name, content)
    assert {
        name.removeprefix("archive/"): content
        for name, content in records_of(buffer.getvalue()).items()
    }.items() >= records.items()
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w", method) as file:
        for name, content in records.items():
            file.writestr(f"root/{name}", content)
    for data in (buffer.getvalue(), other.getvalue()):
        reader = archive.PT2ArchiveReader.of_any_format(bytearray(data))
        for name, content in records.items():
            assert reader.read_bytes(name) == content

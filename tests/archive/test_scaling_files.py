"""Each list, dict and text of a file is enlarged in turn: time grows as the file does."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch._export.serde.schema import SCHEMA_VERSION

from fxpress import archive, pipeline
from fxpress._distributed.stages.documents import sealed
from fxpress._files.serde.artifacts import save_artifact
from fxpress._tools.inspect.summary import summarize
from fxpress._tools.inspect.verification import check_file
from fxpress.checkpoint import ArchiveReader, ArchiveWriter
from fxpress.serialize import deserialize_torch_artifact, serialize
from tests.fuzz.hostile.cases import CONSTANTS, MODEL, SAMPLES, WEIGHTS, records_of, written
from tests.support import growth
from tests.support.checkpoints import save
from tests.support.records import write_records
from tests.support.seed_programs import register

pytestmark = [
    pytest.mark.deep("hundreds of files, each read for up to seconds"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]
SEED = "layers"
INDEX = "model.safetensors.index.json"


class Kind(NamedTuple):
    """A type of file: the parts that are enlarged, and functions that create and read the file."""

    document: Any
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]
    keys: tuple[Callable[[int], Iterator[Any]], ...] = (growth.short_names, growth.same_hash)


def load(data: bytes) -> Any:
    return archive.load(io.BytesIO(data))


def of_record(record: str, read: Callable[[bytes], Any] = load) -> Kind:
    """JSON in an archive."""
    document = json.loads(records_of(SEED)[record])
    return Kind(document, lambda value: written(SEED, {record: value}), read)


def read_metadata(path: Path) -> Any:
    return ArchiveReader(path).read_metadata()


def on_disk(path: Path, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    def write_and_read(data: bytes) -> Any:
        path.write_bytes(data)
        return read(path)

    return write_and_read


def records(_: Path) -> Kind:
    """The archive: names of records, and their bytes."""
    document = {name: data.decode("latin-1") for name, data in records_of(SEED).items()}
    document["archive/extra/text"] = "a"

    def write(value: dict[str, str]) -> bytes:
        return write_records({name: text.encode("latin-1") for name, text in value.items()})

    return Kind(document, write, lambda data: archive.load_pt2(io.BytesIO(data)))


def inputs(_: Path) -> Kind:
    """Example inputs: a pickle."""
    document = [[torch.ones(2), [1, "a"], {"k": {"n": 1}, 3: 2.5}], {"more": {0: [1, 2]}}]

    def write(value: list[Any]) -> bytes:
        return written(SEED, {SAMPLES: save_artifact(tuple(value))})

    return Kind(document, write, load, (growth.short_names, growth.same_in_python))


def older_records() -> dict[str, bytes]:
    """The records of a program in the format before torch 2.9."""
    found = serialize(load(written(SEED, {})))
    return {
        "version": ".".join(map(str, SCHEMA_VERSION)).encode(),
        "serialized_exported_program.json": found.exported_program,
        "serialized_state_dict.pt": found.state_dict,
        "serialized_constants.pt": found.constants,
        "serialized_example_inputs.pt": found.example_inputs,
        "extra_files/text": b"a",
    }


def older(record: str) -> Kind:
    """A record of an older format: JSON, or a pickle."""
    records = older_records()

    def write(value: Any) -> bytes:
        content = json.dumps(value).encode() if record.endswith("json") else save_artifact(value)
        return write_records(records | {record: content})

    if record.endswith("json"):
        return Kind(json.loads(records[record]), write, load)
    state = deserialize_torch_artifact(records[record])
    document = {**state, "n": {"k": [1, "a"]}, "m": (1, torch.ones(3))}
    return Kind(document, write, load, (growth.short_names, growth.same_in_python))


def older_names(_: Path) -> Kind:
    """Names and bytes of the records of an older format."""
    document = {name: data.decode("latin-1") for name, data in older_records().items()}

    def write(value: dict[str, str]) -> bytes:
        return write_records({name: text.encode("latin-1") for name, text in value.items()})

    return Kind(document, write, load)


def header(folder: Path) -> Kind:
    """A safetensors file."""
    entry = {"dtype": "F32", "shape": [0, 2], "data_offsets": [0, 0]}
    document = {"__metadata__": {"format": "pt"}, "a": entry, "b": entry}

    def write(value: Any) -> bytes:
        text = json.dumps(value).encode()
        return len(text).to_bytes(8, "little") + text

    return Kind(document, write, on_disk(folder / "a.safetensors", read_metadata))


def stages(folder: Path) -> Kind:
    """The manifest of a folder of stages."""
    pipeline.save_stages(load(written(SEED, {})), folder / "stages", 2)
    path = folder / "stages" / "manifest.json"
    document = json.loads(path.read_bytes())
    del document["digest"]

    def read(data: bytes) -> Any:
        path.write_bytes(data)
        return pipeline.load_stage(path.parent, 0)

    return Kind(document, lambda value: json.dumps(sealed(value)).encode(), read)


def index(folder: Path) -> Kind:
    """The index of a checkpoint."""
    values = {"a": torch.ones(40, 30), "n": [1, {"k": 2}]}
    save(values, ArchiveWriter(folder / "saved", file_bytes=1000))
    path = shutil.move(folder / "saved", folder / "checkpoint") / INDEX
    document = json.loads(path.read_bytes())

    def read(data: bytes) -> Any:
        path.write_bytes(data)
        return read_metadata(path.parent)

    keys = (growth.short_names, growth.same_hash)
    return Kind(document, lambda value: json.dumps(value).encode(), read, keys)


KINDS: dict[str, Callable[[Path], Kind]] = {
    "program": lambda _: of_record(MODEL),
    "program, inspected": lambda folder: of_record(MODEL, on_disk(folder / "a.pt2", summarize)),
    "program, verified": lambda folder: of_record(MODEL, on_disk(folder / "a.pt2", check_file)),
    "weights": lambda _: of_record(WEIGHTS),
    "constants": lambda _: of_record(CONSTANTS),
    "records": records,
    "inputs": inputs,
    "older program": lambda _: older("serialized_exported_program.json"),
    "older weights": lambda _: older("serialized_state_dict.pt"),
    "older constants": lambda _: older("serialized_constants.pt"),
    "older records": older_names,
    "header": header,
    "stages": stages,
    "index": index,
}


@pytest.mark.parametrize("kind", KINDS)
def test_twice_the_size_takes_twice_the_time(kind: str, tmp_path: Path) -> None:
    register()
    made = KINDS[kind](tmp_path)
    slow = {}
    for place in growth.places(made.document):
        for keys in made.keys:

            def reader(size: int, place: Any = place, keys: Any = keys) -> Callable[[], Any]:
                data = made.write(growth.enlarged(made.document, place, size, keys))
                return lambda: made.read(data)

            ratio = growth.growth(reader)
            if ratio > growth.MOST:
                slow[place, keys.__name__] = ratio
            if not isinstance(value_at(made.document, place), dict):
                break  # it has no keys
    assert not slow


def value_at(value: Any, place: growth.Place) -> Any:
    for step in place:
        value = json.loads(value) if step == growth.JSON else value[step]
    return value


def test_the_keys_have_one_hash() -> None:
    """Otherwise the test above would show nothing: `std::hash` of libstdc++, and Python's."""
    assert len({*growth.same_hash(100)}) == 100
    assert {hash(each) for each in growth.same_in_python(100)} == {0}

"""Archives that are damaged, or made to do harm: errors name the record, and nothing is run."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import resource
import signal
import traceback
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import export

from fxpress import archive, checkpoint, pipeline, serialize
from fxpress._files.archive import reader as reading
from fxpress.archive import LimitError, load
from tests.fuzz.hostile import CASES
from tests.fuzz.hostile.outcomes import frozen_outcomes, read_case
from tests.support import payloads, sentinel
from tests.support.archived import raises_archive_error, records_of, rewritten, saved_by_us

WEIGHT = "archive/data/weights/weight_0"
CONFIG = "archive/data/weights/model_weights_config.json"
SAMPLES = "archive/data/sample_inputs/model.pt"


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        self.constant = torch.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x + self.constant)


X = torch.ones(2, 3)


@pytest.fixture(scope="module")
def data() -> bytes:
    return saved_by_us(export(Model(), (X,)))


def with_config(data: bytes, change: Any) -> bytes:
    config = json.loads(records_of(data)[CONFIG])
    change(config["config"]["linear.weight"])
    return rewritten(data, {CONFIG: json.dumps(config).encode()})


def test_every_truncation(data: bytes) -> None:
    for size in {*range(0, len(data), 97), *range(len(data) - 30, len(data))}:
        raises_archive_error(data[:size])


@pytest.mark.parametrize("threads", [1, 2])
def test_files_that_get_shorter_while_they_are_open(
    threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, size = tmp_path / "shorter.pt2", 24 << 20
    with archive.PT2ArchiveWriter(path) as writer:
        writer.write_bytes("large", bytes(size))
    monkeypatch.setattr(reading.PT2ArchiveReader, "_most_threads", threads)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    to = torch.zeros(size, dtype=torch.uint8)
    with archive.PT2ArchiveReader(path) as reader:
        target = reading.Target("large", 0, size, to.data_ptr())
        reader.read_into([target])
        os.truncate(path, size // 2)
        with pytest.raises(archive.ArchiveError, match="truncated"):
            reader.read_into([target])


def test_flipped_bytes_of_records_name_them(data: bytes) -> None:
    file = zipfile.ZipFile(io.BytesIO(data))
    for info in file.infolist():
        if info.file_size == 0 or ".data/" in info.filename or "byteorder" in info.filename:
            continue
        content = file.read(info)
        at = data.index(content, info.header_offset) + len(content) // 2
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        name = info.filename.partition("/")[2]
        with pytest.raises(archive.ArchiveError, match=re.escape(name)):
            archive.verify(damaged)
        raises_archive_error(damaged, re.escape(name))


def test_checksums_can_be_left_out(data: bytes) -> None:
    weight = records_of(data)[WEIGHT]
    damaged = bytearray(data)
    damaged[data.index(weight)] ^= 1
    loaded = archive.load(damaged, check_crc=False)
    assert loaded.state_dict["linear.weight"].shape == (4, 3)


@pytest.mark.parametrize(
    "name", [WEIGHT, CONFIG, "archive/models/model.json", SAMPLES, "archive/archive_version"]
)
def test_missing_records_are_named(data: bytes, name: str) -> None:
    if name == "archive/models/model.json":
        with pytest.raises(KeyError, match="model"):
            archive.load(rewritten(data, {name: None}))
    else:
        raises_archive_error(rewritten(data, {name: None}), re.escape(name.partition("/")[2]))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"config": 1}', b"\xff", b"null"])
@pytest.mark.parametrize("name", [CONFIG, "archive/data/constants/model_constants_config.json"])
def test_configs_that_are_none(data: bytes, name: str, content: bytes) -> None:
    raises_archive_error(rewritten(data, {name: content}), re.escape(name.partition("/")[2]))


def test_swapped_records(data: bytes) -> None:
    records = records_of(data)
    other = "archive/data/weights/weight_1"
    swapped = rewritten(data, {WEIGHT: records[other], other: records[WEIGHT]})
    raises_archive_error(swapped, "weight_0")


@pytest.mark.parametrize("name", sorted(name for name, case in CASES.items() if case.message))
@pytest.mark.usefixtures("seeds_registered")
def test_hostile_files_whose_message_matters(name: str) -> None:
    with sentinel.listening() as heard:
        outcome, error = read_case(CASES[name])
    assert not heard
    assert outcome == frozen_outcomes()[name]
    assert re.search(CASES[name].message, str(error))


def test_records_of_parts_of_elements(data: bytes) -> None:
    raises_archive_error(rewritten(data, {WEIGHT: b"\0" * 47}), "not a multiple of element size")


def test_sizes_that_nothing_has_memory_for(data: bytes) -> None:
    def change(meta: Any) -> None:
        sizes = [{"as_int": 2**40}, {"as_int": 2**10}]
        strides = [{"as_int": 2**10}, {"as_int": 1}]
        meta["tensor_meta"].update(sizes=sizes, strides=strides)

    empty = rewritten(with_config(data, change), {WEIGHT: b""})
    with pytest.raises((MemoryError, archive.SerializeError), match="weight_0"):
        archive.load(empty)
    unlimited = archive.Limits(memory=2**60)
    with pytest.raises((MemoryError, archive.SerializeError), match="weight_0"):
        archive.load(empty, limits=unlimited)


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/fxpress-was-here",)


def pickled(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_hostile_pickles_are_not_run(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    mark = Path("/tmp/fxpress-was-here")
    mark.unlink(missing_ok=True)
    loaded = archive.load(rewritten(data, {SAMPLES: pickled(((Hostile(),), {}))}))
    assert loaded.example_inputs is None
    assert "example inputs are left out" in caplog.text
    assert loaded.module()(X).shape == (2, 4)
    older = {"archive/data/weights/model.pt": pickled({"linear.weight": Hostile()})}
    with pytest.raises(archive.SerializeError, match="allow_pickle"):
        archive.load(rewritten(data, older))
    assert not mark.exists()


def test_zip_bombs_are_refused(data: bytes) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in records_of(data).items():
            with file.open(name, "w", force_zip64=True) as record:
                if name != WEIGHT:
                    record.write(content)
                    continue
                for _ in range(100):
                    record.write(bytes(1 << 20))
    with pytest.raises(LimitError, match=r"weight_0.*Limits\(memory=") as raised:
        load(io.BytesIO(buffer.getvalue()))
    assert raised.value.limit == "memory"


def test_compressed_records_of_another_size(data: bytes) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in records_of(data).items():
            file.writestr(name, content)
    good = buffer.getvalue()
    with zipfile.ZipFile(io.BytesIO(good)) as file:
        info = file.getinfo("archive/models/model.json")
    size = info.file_size.to_bytes(4, "little")
    for other in (info.file_size - 1, info.file_size + 1):
        damaged = good.replace(size, other.to_bytes(4, "little"))
        raises_archive_error(damaged, "model.json")


@pytest.mark.parametrize("name", ["../x", "archive/../../x", "/x", "archive\\x", "a/./b"])
def test_names_that_lead_elsewhere(data: bytes, name: str) -> None:
    raises_archive_error(rewritten(data, {name: b"x"}), "name")


def test_names_that_are_not_text(data: bytes) -> None:
    damaged = data.replace(b"archive/byteorder", b"archive/byteor\xff\xfe\xfd")
    raises_archive_error(damaged, "UTF-8")


def test_symbolic_links_in_archives(data: bytes) -> None:
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a") as file:
        link = zipfile.ZipInfo("archive/link")
        link.create_system = 3
        link.external_attr = 0xA1FF << 16
        file.writestr(link, "/etc/passwd")
    raises_archive_error(buffer.getvalue(), "link")


def test_other_versions_and_formats(data: bytes) -> None:
    for version in (b"1", b"x", b""):
        with pytest.raises(ValueError, match="archive version"):
            archive.load(rewritten(data, {"archive/archive_version": version}))
    with pytest.raises(archive.ArchiveError, match="its version is missing"):
        archive.load(rewritten(data, {"archive/archive_format": None}))
    for text in (bytearray(), bytearray(b"not a zip file"), bytearray(100)):
        with pytest.raises(zipfile.BadZipFile):
            archive.load(text)


def test_files_that_cannot_be_read(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        archive.load(tmp_path / "none.pt2")
    with pytest.raises(IsADirectoryError):
        archive.load(tmp_path)
    (tmp_path / "cut.pt2").write_bytes(data[:-500])
    with pytest.raises(archive.ArchiveError):
        archive.load(tmp_path / "cut.pt2", mmap=True)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError, match="symbolic links"):
        archive.load(tmp_path / "loop")


def test_errors_of_the_graph_name_the_record_and_keep_their_type(data: bytes) -> None:
    name = "archive/models/model.json"
    text = records_of(data)[name]
    damaged = rewritten(
        data, {name: text.replace(b"torch.ops.aten.add.Tensor", b"torch.ops.x.y.z")}
    )
    with pytest.raises(archive.SerializeError, match=r"(?s)models/model\.json.*torch\.ops\.x\.y"):
        archive.load(damaged)


def test_tracebacks_and_logs_do_not_act_on_a_terminal(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Each text of a program in turn has escapes; the chain of the exception is printed too."""
    escapes = "\x1b]0;x\x07\x9b31m\u202e\r\b"
    name = "archive/models/model.json"
    document = json.loads(records_of(data)[name])
    for position in range(len(payloads.slots(document))):
        changed = payloads.with_payload(document, [position], lambda text: text + escapes)
        try:
            archive.load(rewritten(data, {name: json.dumps(changed).encode()}))
        except archive.SerializeError as error:
            shown = "".join(traceback.format_exception(error))
            assert all(map(str.isprintable, shown.split("\n"))), payloads.slots(document)[position]
    samples = pickled(((), {"x" + escapes: torch.ones(1)}))
    archive.load(rewritten(data, {SAMPLES: samples}))
    assert "are left out" in caplog.text
    assert all(map(str.isprintable, caplog.text.split("\n")))


class StopError(RuntimeError):
    """An exception that a signal handler of the caller raises."""


PLACES = (
    "fxpress._files.serde.reading.check_arithmetic",
    "fxpress._files.serde.targets.find_target",
    "fxpress._files.serde.artifacts.check_pickle",
    "fxpress._files.serde.expressions._Reader.read",
)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [StopError, MemoryError])
def test_signal_handlers_and_a_lack_of_memory_are_not_damage(
    place: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = export(Model(), (X,), dynamic_shapes={"x": {0: torch.export.Dim("n", max=64)}})

    def stop(*_: object) -> None:
        raise error("stop")

    def interrupted(*_: object) -> None:
        stop() if error is MemoryError else signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stop)
    try:
        monkeypatch.setattr(place, interrupted)
        with pytest.raises(error) as caught:
            archive.load(saved_by_us(program))
        assert type(caught.value) is error
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_lack_of_memory_is_a_memory_error(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch reports it as a RuntimeError of its allocator."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")

    artifact = serialize.serialize(export(Model(), (X,)))
    for target, read in (
        ("fxpress._files.archive.storages.allocate_bytes", lambda: archive.load(bytearray(data))),
        ("torch.empty", lambda: serialize.deserialize(artifact)),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, fail)
            with pytest.raises(MemoryError) as caught:
                read()
        assert not isinstance(caught.value, archive.SerializeError)


def test_a_lack_of_address_space_for_a_mapping_is_a_memory_error(tmp_path: Path) -> None:
    archive.save(export(torch.nn.Linear(2000, 2000), (torch.ones(2000),)), tmp_path / "a.pt2")
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), before[1]))
    try:
        with pytest.raises(MemoryError, match="cannot be mapped") as caught:
            archive.load(tmp_path / "a.pt2", mmap=True)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert not isinstance(caught.value, archive.SerializeError)


def test_unpickling_is_suggested_only_for_undamaged_pickles() -> None:
    sound = pickled(((Hostile(),), {"x": torch.ones(3)}))
    assert "allow_pickle" in _refused_artifact(sound)
    with zipfile.ZipFile(io.BytesIO(sound)) as file:
        (pickle_record,) = (name for name in file.namelist() if name.endswith("data.pkl"))
        at = sound.index(file.read(pickle_record))
    damaged = [sound[:size] for size in range(1, len(sound), 61)]
    damaged += [bytes(sound[:i]) + b"\xff" + bytes(sound[i + 1 :]) for i in range(at, at + 40)]
    allowed = pickled(((torch.ones(3),), {}))
    damaged.append(bytes(rewritten(allowed, {pickle_record.replace(".pkl", "/0"): None})))
    damaged += [b"no pickle", pickle.dumps([1], 2)[:-1]]
    for each in damaged:
        assert "allow_pickle" not in _refused_artifact(each)


def _refused_artifact(data: bytes) -> str:
    with pytest.raises(archive.SerializeError) as caught:
        serialize.deserialize_torch_artifact(data)
    return str(caught.value)


def test_pipes_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "stages").mkdir()
    names = ["a.pt2", "a.safetensors", "a.safetensors.index.json", "stages/manifest.json"]
    for name in names:
        os.mkfifo(tmp_path / name)
    reads = [
        *(lambda each=each: checkpoint.ArchiveReader(tmp_path / each).read_metadata()
          for each in names[:3]),
        lambda: archive.load(tmp_path / "a.pt2"),
        lambda: archive.load_pt2(tmp_path / "a.pt2"),
        lambda: pipeline.load_stage(tmp_path / "stages", 0),
        lambda: pipeline.load_stage(tmp_path / "a.pt2", 0),
    ]  # fmt: skip
    for read in reads:
        with pytest.raises(OSError, match="expected a regular file"):
            read()


def test_the_first_module_path_is_that_of_the_program(data: bytes) -> None:
    name = "archive/models/model.json"
    document = json.loads(records_of(data)[name])
    document["graph_module"]["module_call_graph"][0]["fqn"] = "linear"
    damaged = rewritten(data, {name: json.dumps(document).encode()})
    with pytest.raises(archive.SerializeError, match=r"module_call_graph\[0\]\.fqn: expected ''"):
        archive.load(damaged)


def test_python_does_not_warn_of_the_escapes_of_a_file() -> None:
    """A part of the file would be in the warning, and it may be an error for the caller."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(archive.ArchiveError, match="a pickle"):
            archive.load(bytearray(b"S'\\\x1b'\n."))

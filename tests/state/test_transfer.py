"""The steps of copies between host and device, on a device whose streams do their work late.

On a GPU: test_state.py and test_unflatten_state.py.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from fxpress import archive, state
from fxpress._files.archive import payloads, storages
from fxpress._files.archive.load_options import Options
from fxpress._files.archive.reader import PT2ArchiveReader
from fxpress._files.archive.writer import PT2ArchiveWriter
from fxpress._files.tensors import transfer
from tests.support.late_device import Device, late_device

PIECE = 64
CHANCES = [0.0, 0.2, 0.5, 0.99]
MIXES = [
    [],
    [0],
    [5],
    [64],
    [65],
    [1000],
    [0, 1, 7, 64, 3, 1000, 64, 129, 0],
    [3] * 50,
    [1000, 1, 1, 1, 1, 1, 1, 700, 640],
]


@pytest.fixture(params=CHANCES)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    with late_device(1, request.param, PIECE) as device:
        yield device


def of_sizes(sizes: list[int]) -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(len(sizes))
    return [torch.randint(0, 256, (n,), dtype=torch.uint8, generator=chance) for n in sizes]


def spoiled_late(device: Device, tensors: list[torch.Tensor]) -> None:
    """The previous owner of the tensors' memory still writes to it, on the caller's stream."""
    for tensor in tensors:
        device.enqueue(lambda tensor=tensor: tensor.fill_(0xBB))


@pytest.mark.parametrize("sizes", MIXES)
def test_to_the_device(device: Device, sizes: list[int]) -> None:
    sources = of_sizes(sizes)
    before = [source.clone() for source in sources]
    targets = [device.own(torch.zeros_like(source)) for source in sources]
    spoiled_late(device, targets)
    transfer._from_host(sources, targets)
    for source in sources:
        source.zero_()  # nobody reads it any more
    assert all(map(torch.equal, targets, before))


@pytest.mark.parametrize("sizes", MIXES)
def test_pinned_memory_to_the_device(
    device: Device, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    sources = of_sizes(sizes)
    before = [source.clone() for source in sources]
    targets = [device.own(torch.zeros_like(source)) for source in sources]
    transfer._from_host(sources, targets)
    for source in sources:
        source.zero_()
    assert all(map(torch.equal, targets, before))


@pytest.mark.parametrize("sizes", MIXES)
def test_to_the_host(device: Device, sizes: list[int]) -> None:
    values = of_sizes(sizes)
    sources = [device.own(torch.zeros_like(value)) for value in values]
    for source, value in zip(sources, values, strict=True):
        device.enqueue(lambda s=source, v=value: s.copy_(v))
    targets = [torch.zeros_like(value) for value in values]
    transfer._to_host(sources, targets)
    assert all(map(torch.equal, targets, values))


@pytest.mark.parametrize("sizes", MIXES)
def test_on_the_device(device: Device, sizes: list[int]) -> None:
    """The host does not wait; later work on the caller's stream runs after the copies."""
    sources = [device.own(value) for value in of_sizes(sizes)]
    before = [source.clone() for source in sources]
    targets = [device.own(torch.zeros_like(source)) for source in sources]
    transfer._within(sources, targets)
    device.current.synchronize()
    assert all(map(torch.equal, targets, before))


def test_who_stops_early_waits(device: Device) -> None:
    """Buffers are freed with the generator: no copy may be under way."""
    sources = [device.own(value) for value in of_sizes([1000])]
    pieces = transfer.download(sources)
    next(pieces)
    pieces.close()
    assert not any(stream.waiting for stream in device.streams)


def test_who_fails_waits(device: Device) -> None:
    targets = [device.own(value) for value in of_sizes([1000])]
    calls = 0

    def fill(parts: list[transfer.Part], buffer: torch.Tensor) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError("it is gone")

    with pytest.raises(OSError, match="it is gone"):
        transfer.upload(targets, fill)
    assert not any(stream.waiting for stream in device.streams)


def test_who_fails_waits_for_pinned_memory(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    monkeypatch.setattr(transfer, "upload", fail)
    sources = of_sizes([1000, 5])
    with pytest.raises(OSError, match="no memory"):
        transfer._from_host(sources, [device.own(torch.zeros_like(each)) for each in sources])
    assert not any(stream.waiting for stream in device.streams)


def test_host_memory_is_bounded() -> None:
    with late_device(0, 0.5, PIECE) as device:
        sources = of_sizes([10_000, *[3] * 1000])
        targets = [device.own(torch.zeros_like(source)) for source in sources]
        transfer._from_host(sources, targets)
        assert sum(device.pinned) <= 4 * PIECE
        device.pinned.clear()
        for _ in transfer.download(targets):
            pass
        assert sum(device.pinned) <= 4 * PIECE
        device.pinned.clear()
        transfer._from_host(sources[-2:], targets[-2:])
        assert sum(device.pinned) == 6


def test_many_small_ones_are_few_launches() -> None:
    with late_device(0, 0.5, 1 << 20) as device:
        sources = of_sizes([100] * 1000)
        targets = [device.own(torch.zeros_like(source)) for source in sources]
        transfer._from_host(sources, targets)
        assert device.launches <= 3
        device.launches = 0
        for _ in transfer.download(targets):
            pass
        assert device.launches <= 3


def test_parts_are_all_bytes_in_order() -> None:
    chance = random.Random(0)
    with late_device(0, 0.5, PIECE):
        for _ in range(200):
            sizes = [chance.choice([0, 1, 30, 64, 65, 300]) for _ in range(chance.randrange(20))]
            seen = [0] * len(sizes)
            position = 0
            for parts in transfer._parts(sizes):
                assert 0 < sum(part.size for part in parts) <= PIECE
                for part in parts:
                    assert part.position >= position
                    assert part.start == seen[part.position]
                    position = part.position
                    seen[position] += part.size
            assert seen == sizes


def saved(tensors: dict[str, torch.Tensor]) -> io.BytesIO:
    file = io.BytesIO()
    state.write(tensors, file)
    return file


def named(sizes: list[int]) -> dict[str, torch.Tensor]:
    return {f"t{i}": tensor for i, tensor in enumerate(of_sizes(sizes))}


def weights_in(reader: PT2ArchiveReader) -> list[str]:
    return [name for name in reader.get_file_names() if name.startswith("data/weights/weight_")]


@pytest.mark.parametrize("sizes", MIXES)
def test_a_file_to_the_device(device: Device, sizes: list[int]) -> None:
    """In parts, each record compared with its checksum."""
    values = named(sizes)
    with PT2ArchiveReader(saved(values)) as reader:
        every = [(name, reader.record(name).size) for name in weights_in(reader)]
        records = [(name, size) for name, size in every if size]
        made = [device.own(torch.zeros(size, dtype=torch.uint8)) for _, size in records]
        spoiled_late(device, made)
        reading = storages._Storages(reader, Options())
        reading._upload(records, made, None)
    assert all(map(torch.equal, made, [value for value in values.values() if value.numel()]))


def test_damage_on_the_way_to_the_device(device: Device) -> None:
    data = bytearray(saved(named([1000, 5])).getvalue())
    for name, position in (("weight_0", 990), ("weight_1", 3)):
        with PT2ArchiveReader(data) as reader:
            record = reader.record(f"data/weights/{name}")
        damaged = bytearray(data)
        damaged[record.offset + position] ^= 1
        with PT2ArchiveReader(damaged) as reader:
            records = [(f"data/weights/weight_{i}", n) for i, n in enumerate([1000, 5])]
            made = [device.own(torch.zeros(size, dtype=torch.uint8)) for _, size in records]
            with pytest.raises(archive.ArchiveError, match=name):
                storages._Storages(reader, Options())._upload(records, made, None)


def on_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights with memory are taken to be on a device: only the device's type is checked."""
    kinds = {True: torch.device("cuda:0"), False: torch.device("cpu")}
    device = property(lambda group: kinds[group.size > 0])
    monkeypatch.setattr(payloads.tensors.Group, "device", device)


def test_storages_at_one_address(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record has the bytes of the largest, whichever comes first."""
    whole = device.own(torch.arange(100, dtype=torch.uint8))
    part = torch.from_dlpack(whole[:10])
    assert part.untyped_storage().nbytes() == 10
    on_device(monkeypatch)
    file = io.BytesIO()
    with PT2ArchiveWriter(file) as writer:
        payloads.write_weights(writer, {"part": part, "whole": whole}, 2)
    with PT2ArchiveReader(bytearray(file.getvalue())) as reader:
        assert [reader.read_bytes(name) for name in weights_in(reader)] == [bytes(range(100))]


@pytest.mark.parametrize("sizes", MIXES)
def test_the_device_to_a_file(
    device: Device, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records equal the records of tensors on the host."""
    values = named(sizes)
    expected = saved(values)
    kept = [value.clone() for value in values.values()]
    for value, bytes_of_it in zip(values.values(), kept, strict=True):
        device.own(value.zero_())
        device.enqueue(lambda v=value, b=bytes_of_it: v.copy_(b))
    on_device(monkeypatch)
    file = io.BytesIO()
    with PT2ArchiveWriter(file) as writer:
        payloads.write_weights(writer, values, 2)
    with PT2ArchiveReader(expected) as left, PT2ArchiveReader(bytearray(file.getvalue())) as right:
        assert weights_in(left) == weights_in(right)
        assert len(weights_in(left)) == sum(n > 0 for n in sizes) + (0 in sizes)
        for name in weights_in(left):
            assert left.read_bytes(name) == right.read_bytes(name)


@pytest.mark.parametrize("to", [None, torch.device("cpu")])
def test_copies_on_the_host(to: torch.device | None) -> None:
    sources = of_sizes([3, 0, 5, transfer._LARGE])
    made = transfer.to_device(sources, to)
    assert all(map(torch.equal, made, sources))
    made[0].zero_()
    assert sources[0].any()


@pytest.mark.parametrize(
    ("here", "there", "way"),
    [
        ("cpu", "cuda", "_from_host"),
        ("cuda", "cpu", "_to_host"),
        ("cuda", "cuda:1", "_within"),
        ("cpu", "cpu", "_within"),
        ("cuda", "meta", None),
    ],
)
def test_the_way_between_two_devices(
    here: str, there: str, way: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices that this machine need not have; there is nothing to copy to the meta device."""
    taken: list[str] = []
    for name in ("_from_host", "_to_host", "_within"):
        monkeypatch.setattr(transfer, name, lambda *_, name=name: taken.append(name))
    source, target = (SimpleNamespace(device=torch.device(name)) for name in (here, there))
    transfer._copy([source], [target])
    assert taken == ([] if way is None else [way])

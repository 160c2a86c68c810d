"""`fxpress.state`: copies of many tensors at once."""

from __future__ import annotations

import copy
import gc
import io
from pathlib import Path
from typing import Any

import pytest
import torch

from fxpress import archive, state
from tests.support.archived import sharing


def tensors_of_every_kind() -> dict[str, torch.Tensor]:
    whole = torch.arange(24.0)
    odd = torch.arange(40, dtype=torch.uint8)
    return {
        "whole": whole,
        "view": whole[3:9].reshape(2, 3).t(),
        "bits": whole.view(torch.int32)[5:7],
        "expanded": torch.arange(3.0).expand(4, 3),
        "far": torch.arange(1000.0)[900:910:3],
        "odd": odd[33:37].view(torch.float32) if (odd.data_ptr() + 33) % 4 == 0 else odd[33:37],
        "empty": torch.empty(0, 5),
        "scalar": torch.tensor(3),
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "grad": torch.ones(3, requires_grad=True),
        "computed": torch.ones(3, requires_grad=True) * 2,
        "complex": torch.tensor([1 + 2j, 3j]).conj(),
        "negative": torch.tensor([1 + 2j, 3j]).conj().imag,
        "half": torch.ones(3, dtype=torch.bfloat16),
        "bool": torch.tensor([True, False]),
        "channels": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "sparse": torch.eye(3).to_sparse(),
        "sparse parameter": torch.nn.Parameter(torch.eye(3).to_sparse()),
        "rows": torch.eye(3).to_sparse_csr(),
        "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 2, torch.quint8),
        "meta": torch.empty(3, 4, device="meta").t(),
    }


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.device.type == "meta":
        return a.shape == b.shape and b.device.type == "meta"
    if a.layout is not torch.strided:
        return torch.equal(a.to_dense(), b.to_dense())
    return torch.equal(a, b)


def test_copies_are_what_the_originals_are() -> None:
    originals = tensors_of_every_kind()
    copies = state.clone(originals)
    assert list(copies) == list(originals)
    for name, original in originals.items():
        copied = copies[name]
        assert same_values(original, copied), name
        assert type(copied) is type(original), name
        assert (copied.dtype, copied.layout) == (original.dtype, original.layout), name
        assert copied.requires_grad == original.requires_grad, name
        assert copied.is_leaf, name
        assert copied.is_conj() == original.is_conj(), name
        assert copied.is_neg() == original.is_neg(), name
        if original.layout is torch.strided:
            assert copied.stride() == original.stride(), name
            if original.numel() and original.device.type == "cpu":
                assert copied.data_ptr() != original.data_ptr(), name
    assert sharing(copies) == sharing(originals)
    quantized = copies["quantized"]
    assert (quantized.q_scale(), quantized.q_zero_point()) == (0.1, 2)
    copies["whole"].fill_(-1)
    assert (copies["view"] == -1).all()
    assert (originals["view"] >= 0).all()
    assert copies["far"].untyped_storage().nbytes() < 100  # what is seen, and no more


def test_tensors_that_are_more_than_views_of_memory() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    zero = torch._efficientzerotensor((5,))
    functional = torch._to_functional_tensor(torch.ones(5))
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    for original in (zero, functional, nested):
        (copied,) = state.clone([original])
        assert copied.shape == original.shape if original is not nested else copied.is_nested
    gone = torch.ones(1000)
    gone.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="larger than its storage"):
        state.clone([gone])
    with FakeTensorMode(allow_non_fake_inputs=True):
        state.clone([torch.ones(2)])


def test_storages_at_one_address() -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(20, dtype="float32")
    tensors = {"part": torch.from_numpy(array[:10]), "whole": torch.from_numpy(array)}
    buffer = io.BytesIO()
    state.write(tensors, buffer)
    read = state.read(buffer)
    for name, value in tensors.items():
        assert torch.equal(read[name], value)


def test_a_tensor_that_occurs_twice_is_one_copy() -> None:
    x, y = torch.ones(2), torch.eye(2).to_sparse()
    a, b, c, d = state.clone([x, x, y, y])
    assert a is b
    assert c is d
    assert isinstance(state.clone((x,)), list)
    assert state.clone([]) == []
    assert state.clone({}) == {}


@pytest.mark.parametrize("value", [1, "x", None, [torch.ones(1)]])
def test_what_is_no_tensor(value: Any) -> None:
    for function in (state.clone, lambda values: state.move(values, "cpu")):
        with pytest.raises(TypeError, match="expected tensors"):
            function([torch.ones(1), value])


def test_large_and_many() -> None:
    chance = torch.Generator().manual_seed(0)
    sizes = [*torch.randint(0, 5000, (500,), generator=chance).tolist(), 3_000_001, 17]
    originals = [torch.randn(size, generator=chance) for size in sizes]
    for original, copied in zip(originals, state.clone(originals), strict=True):
        assert torch.equal(original, copied)
        assert copied.untyped_storage().nbytes() == original.nbytes


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_pieces_for_threads(threads: int) -> None:
    group, page = 2**20, 2**21
    sizes = [0, 1, 1000, group - 1, group, group + 1, 7, page - 1, page + 1, 5 * page + 3, 0]
    sizes += [65_000] * 40
    tensors = [torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        copies = state.clone(tensors)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(tensors, copies, strict=True))
    assert not {t.data_ptr() for t in copies if len(t)} & {t.data_ptr() for t in tensors}


def test_modes_see_the_copies() -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(torch.ones(3))
        assert isinstance(state.clone([fake])[0], FakeTensor)

    class Watch(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.seen += 1
            return func(*args, **(kwargs or {}))

    with Watch() as watch:
        state.clone([torch.ones(2)])
    assert watch.seen >= 1


def test_copies_do_not_keep_the_originals() -> None:
    import weakref

    original = torch.ones(3)
    gone = weakref.ref(original)
    copies = state.clone([original])
    del original
    gc.collect()
    assert gone() is None
    assert torch.equal(copies[0], torch.ones(3))


def test_moves() -> None:
    originals = {k: v for k, v in tensors_of_every_kind().items() if k != "meta"}
    here = state.move(originals, "cpu")
    assert all(here[name] is value for name, value in originals.items())
    strided = {
        name: value
        for name, value in originals.items()
        if value.layout is torch.strided and not value.is_quantized
    }
    away = state.move(strided, torch.device("meta"))
    for name, value in strided.items():
        assert away[name].device.type == "meta", name
        assert away[name].shape == value.shape, name
        assert type(away[name]) is type(value), name
        assert away[name].requires_grad == value.requires_grad, name
    with pytest.raises(RuntimeError, match="device"):
        state.move(originals, "no device")
    if not torch.cuda.is_available():
        with pytest.raises((RuntimeError, AssertionError), match=r"(?i)cuda|nvidia"):
            state.move(originals, "cuda")


def test_nothing_comes_from_the_meta_device() -> None:
    there = [torch.empty(3, device="meta"), torch.empty(0, device="meta")]
    for call in (lambda: state.move(there, "cpu"), lambda: there[0].to("cpu")):
        with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor; no data!"):
            call()
    assert [each.device.type for each in state.clone(there)] == ["meta", "meta"]


def test_objects_that_say_what_their_class_is() -> None:
    """Their code does not run while tensors are checked."""
    values: list[Any] = [torch.ones(3) for _ in range(20)]

    class Liar:
        @property
        def __class__(self) -> type:
            values[:] = []
            return torch.Tensor

    values.insert(10, Liar())
    with pytest.raises(TypeError, match="expected tensors, got a Liar"):
        state.clone(values)
    assert len(values) == 21


def test_files(tmp_path: Path) -> None:
    originals = {
        k: v
        for k, v in tensors_of_every_kind().items()
        if v.layout is torch.strided and not v.is_quantized and k not in ("meta", "computed")
    }
    path = tmp_path / "state.pt2"
    state.write(originals, path)
    archive.verify(path)
    for source, options in ((path, {}), (path, {"mmap": True}), (bytearray(path.read_bytes()), {})):
        read = state.read(source, **options)
        assert sorted(read) == sorted(originals)
        for name, value in originals.items():
            assert torch.equal(read[name], value), name
            assert type(read[name]) is type(value), name
            assert read[name].requires_grad == value.requires_grad, name
    with pytest.raises(AssertionError, match="only torch"):
        state.write({"x": 1}, path)  # type: ignore[dict-item]
    buffer = io.BytesIO()
    state.write({}, buffer)
    assert state.read(buffer) == {}


def test_the_state_of_a_program(tmp_path: Path) -> None:
    program = torch.export.export(torch.nn.Linear(2, 3), (torch.ones(1, 2),))
    archive.save(program, tmp_path / "model.pt2")
    read = state.read(tmp_path / "model.pt2")
    assert torch.equal(read["weight"], program.state_dict["weight"])
    with pytest.raises(archive.ArchiveError, match="other_weights_config"):
        state.read(tmp_path / "model.pt2", model="other")


def test_copies_of_copies_share_nothing() -> None:
    originals = tensors_of_every_kind()
    first = state.clone(originals)
    second = copy.copy(state.clone(first))
    addresses = [
        {v.untyped_storage().data_ptr() for v in values.values() if v.layout is torch.strided} - {0}
        for values in (originals, first, second)
    ]
    assert not addresses[0] & addresses[1]
    assert not addresses[1] & addresses[2]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_and_back(tmp_path: Path) -> None:
    originals = {
        k: v
        for k, v in tensors_of_every_kind().items()
        if v.layout is torch.strided and not v.is_quantized and k != "meta"
    }
    originals["large"] = torch.randn(30_000_000)
    there = state.move(originals, "cuda")
    copies = state.clone(there)
    back = state.move(copies, "cpu")
    for name, value in originals.items():
        assert there[name].device.type == "cuda"
        assert copies[name].data_ptr() != there[name].data_ptr() or not value.numel()
        assert torch.equal(back[name], value), name
    assert sharing(there) == sharing(originals)
    for options in ({}, {"mmap": True}):
        state.write(there, tmp_path / "state.pt2")
        for name, value in state.read(tmp_path / "state.pt2", **options).items():
            assert value.device.type == "cuda"
            assert torch.equal(value.cpu(), originals[name])
    state.write(originals, tmp_path / "host.pt2")
    moved = state.read(tmp_path / "host.pt2", map_location="cuda")
    # In a file, views of another dtype have separate storages.
    assert sharing(moved) == sharing(state.read(tmp_path / "host.pt2"))
    for name, value in originals.items():
        assert moved[name].device.type == "cuda"
        assert torch.equal(moved[name].cpu(), value), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_streams_of_the_caller() -> None:
    """Copies run after earlier work on the caller's stream, and before later work."""
    for _ in range(10):
        with torch.cuda.stream(torch.cuda.Stream()):
            values = [torch.zeros(1000, device="cuda") for _ in range(100)]
            torch.cuda._sleep(10_000_000)
            for i, value in enumerate(values):
                value.fill_(i)
            copies = state.clone(values)
            host = state.move(values, "cpu")
            for value in values:
                value.fill_(-1)
        torch.cuda.synchronize()
        for i, (copied, moved) in enumerate(zip(copies, host, strict=True)):
            assert (moved == i).all()
            assert (copied == i).all()

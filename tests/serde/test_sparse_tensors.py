"""Sparse tensors in files: indices outside of a tensor make operators read other memory."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import export

from fxpress._torch.versions import features
from fxpress.serialize import (
    SerializeError,
    deserialize,
    deserialize_torch_artifact,
    serialize,
    serialize_torch_artifact,
)


def coo(place: int) -> torch.Tensor:
    indices = torch.tensor([[0, place]])
    return torch.sparse_coo_tensor(indices, torch.ones(2), (3,), check_invariants=False)


def compressed(layout: torch.layout, place: int) -> torch.Tensor:
    values = (
        torch.ones(2, 1, 1) if layout in (torch.sparse_bsr, torch.sparse_bsc) else torch.ones(2)
    )
    return torch.sparse_compressed_tensor(
        torch.tensor([0, 1, 2]),
        torch.tensor([0, place]),
        values,
        (2, 2),
        layout=layout,
        check_invariants=False,
    )


LAYOUTS = {
    "csr": torch.sparse_csr,
    "csc": torch.sparse_csc,
    "bsr": torch.sparse_bsr,
    "bsc": torch.sparse_bsc,
}


def made(kind: str, *, right: bool) -> torch.Tensor:
    place = 1 if right else 1000
    return coo(place) if kind == "coo" else compressed(LAYOUTS[kind], place)


KINDS = ("coo", *LAYOUTS)


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:Validating sparse")
@pytest.mark.parametrize("kind", KINDS)
def test_wrong_indices_are_refused(kind: str) -> None:
    saved = serialize_torch_artifact({"w": made(kind, right=False)})
    with pytest.raises(SerializeError, match="the artifact is damaged: a sparse tensor has"):
        deserialize_torch_artifact(saved)
    # The oracle is torch's own reading, of releases in which it looks.
    if features.reading_validates_sparse_tensors:
        with pytest.raises(RuntimeError):
            torch.load(io.BytesIO(saved), weights_only=True)
    else:
        torch.load(io.BytesIO(saved), weights_only=True)


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:Validating sparse")
@pytest.mark.parametrize("kind", KINDS)
def test_right_indices(kind: str) -> None:
    tensor = made(kind, right=True)
    saved = serialize_torch_artifact({"w": tensor, "c": tensor.to_dense()})
    ours = deserialize_torch_artifact(saved)
    theirs = torch.load(io.BytesIO(saved), weights_only=True)
    for name, other in theirs.items():
        assert ours[name].layout == other.layout
        assert torch.equal(ours[name].to_dense(), other.to_dense())
        if kind == "coo" and name == "w":
            assert ours[name].is_coalesced() == other.is_coalesced()


def test_threads_do_not_hide_each_others_tensors() -> None:
    good = serialize_torch_artifact({"w": coo(1)})
    bad = serialize_torch_artifact({"w": coo(1000)})

    def read(saved: bytes) -> bool:
        try:
            deserialize_torch_artifact(saved)
        except SerializeError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, [good, bad] * 50)) == [True, False] * 50


class Sparse(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("w", weight)

    def forward(self, x: Any) -> Any:
        return x + 1


def test_programs() -> None:
    program = export(Sparse(torch.ones(3)), (torch.ones(3),))
    program.state_dict["w"] = coo(1000)
    with pytest.raises(SerializeError, match="wrong indices"):
        deserialize(serialize(program))

"""Tree specs that torch cannot write or read either."""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export.serde import serialize as torch_serialize
from torch.export import export
from torch.utils import _pytree as pytree

from fxpress.serialize import SerializeError, deserialize, serialize
from tests.support.reading_cases import edited, top

First = namedtuple("First", ["x", "y"])
Second = namedtuple("Second", ["p", "q"])


@pytest.fixture
def of_one_name() -> Iterator[None]:
    name = "fxpress_tests.OfOneName"
    for cls in (First, Second):
        pytree._register_namedtuple(cls, serialized_type_name=name)
    yield
    for cls in (First, Second):
        del pytree.SUPPORTED_SERIALIZED_TYPES[cls]
    del pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[name]


@pytest.mark.usefixtures("of_one_name")
def test_two_named_tuples_of_one_name() -> None:
    class Takes(nn.Module):
        def forward(self, first: Any, second: Any) -> Tensor:
            return first.x + second.p

    x = torch.ones(2)
    program = export(Takes(), (First(x, x), Second(x, x)), strict=False)
    for write in (torch_serialize.serialize, serialize):
        with pytest.raises(torch_serialize.SerializeError, match=r"\('x', 'y'\)"):
            write(program)


@pytest.mark.parametrize(
    "context",
    [{}, [], "list", {"default_factory_module": "builtins", "default_factory_name": "list"}],
    ids=str,
)
def test_contexts_of_default_dicts(context: Any) -> None:
    spec = {"type": "collections.defaultdict", "context": context, "children_spec": []}
    refused(json.dumps([1, spec]), "the context of a defaultdict is damaged")


@pytest.mark.parametrize("children", [None, "text", 3], ids=str)
def test_children_that_are_no_list(children: Any) -> None:
    spec = {"type": "builtins.tuple", "context": "null", "children_spec": children}
    refused(json.dumps([1, spec]), "children of a tree spec to be a list")


def refused(text: str, why: str) -> None:
    def edit(stored: Any) -> None:
        stored["graph_module"]["module_call_graph"][0]["signature"]["in_spec"] = text

    written = edited(serialize(top()), edit)
    with pytest.raises(Exception):  # noqa: B017 (of any kind, in torch)
        torch_serialize.deserialize(written)
    with pytest.raises(SerializeError, match=why):
        deserialize(written)

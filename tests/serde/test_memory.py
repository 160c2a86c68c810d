"""References, leaks and memory of serialization, where it succeeds and where it fails."""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import logging
import sys
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from fxpress.serialize import SerializedArtifact, SerializeError, deserialize, serialize
from tests.support.memory import check_no_blocks_leak
from tests.support.serialized import rewritten


@pytest.fixture(autouse=True)
def no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest keeps every record that torch logs."""
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "disabled", True)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        y = torch.cond(x.sum() > 0, lambda x: self.linear(x), lambda x: x.sin(), (x,))
        return y.topk(2).values, x.shape[0] * 2


@functools.cache
def program() -> ExportedProgram:
    shapes = ({0: Dim("n", min=2)},)
    return export(Branches(), (torch.randn(6, 4),), dynamic_shapes=shapes, strict=True)


@functools.cache
def broken(how: str) -> ExportedProgram:
    shapes = ({0: Dim("n", min=2)},)
    made = export(Branches(), (torch.randn(6, 4),), dynamic_shapes=shapes, strict=False)
    last = [node for node in made.graph.nodes if node.op == "call_function"][-1]
    if how == "argument":
        last.args = (last.args[0], object())
    elif how == "value":
        last.meta["val"] = {"a": 1}
    elif how == "metadata":
        last.meta["custom"] = {"a": object()}
    else:
        last.meta["nn_module_stack"] = {"a": ("b",)}
    return made


def succeed() -> None:
    serialize(program())


def fail(how: str) -> None:
    with pytest.raises(SerializeError):
        serialize(broken(how))


def fail_to_validate() -> None:
    specs = program().graph_signature.input_specs
    spec = specs.pop()
    try:
        with pytest.raises(Exception, match="does not match number"):
            serialize(program())
    finally:
        specs.append(spec)


@functools.cache
def text() -> bytes:
    return serialize(program()).exported_program


def read() -> None:
    assert rewritten(text()) == text()


def fail_to_read() -> None:
    for end in (0, 1, 100, len(text()) - 1):
        with pytest.raises(SerializeError):
            rewritten(text()[:end])


@functools.cache
def written() -> SerializedArtifact:
    """Without symbols: torch's tables of them grow with every shape environment."""
    return serialize(export(Branches(), (torch.randn(6, 4),), strict=True))


def load() -> None:
    deserialize(written())


def damage(stored: Any, how: str) -> None:
    graph = stored["graph_module"]["graph"]
    node = next(n for n in graph["nodes"] if "topk" in n["target"])
    if how == "name":
        node["inputs"][0]["arg"]["as_tensor"]["name"] = "nobody"
    elif how == "target":
        node["target"] = "torch.ops.nobody.knows.this"
    elif how == "expression":
        node = graph["tensor_values"][node["outputs"][0]["as_tensor"]["name"]]
        node["sizes"][0] = {"as_expr": {"expr_str": "1 +", "hint": None}}
    elif how == "sources":
        node["metadata"]["from_node"] = '[{"name": 1}]'
    elif how == "body":
        cond = next(n for n in graph["nodes"] if "cond" in n["target"])
        body = next(i["arg"]["as_graph"] for i in cond["inputs"] if "as_graph" in i["arg"])
        body["graph"]["nodes"][-1]["outputs"][0] = {"as_tensor": {"name": "nobody"}}
    else:
        signature = stored["graph_module"]["module_call_graph"][0]["signature"]
        signature["out_spec"] = "[1, {}]"


@functools.cache
def damaged(how: str) -> SerializedArtifact:
    stored = json.loads(written().exported_program)
    damage(stored, how)
    return dataclasses.replace(written(), exported_program=json.dumps(stored).encode())


def fail_to_load(how: str) -> None:
    with pytest.raises(SerializeError):
        deserialize(damaged(how))


LOADS = ("name", "target", "expression", "sources", "body", "treespec")
HOWS = ("argument", "value", "metadata", "stack")
CASES: dict[str, Callable[[], None]] = {
    "succeed": succeed,
    **{how: functools.partial(fail, how) for how in HOWS},
    "validate": fail_to_validate,
    "read": read,
    "fail to read": fail_to_read,
    "load": load,
    **{f"load {how}": functools.partial(fail_to_load, how) for how in LOADS},
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def references() -> list[int]:
    """Return the reference counts of nodes, their fields, and the parts of the signature."""
    gc.collect()  # errors hold the frames that raised them
    nodes = list(program().graph.nodes)
    specs = program().graph_signature.input_specs
    touched = [*nodes, *(n.meta for n in nodes), *(n.name for n in nodes), *specs]
    return [sys.getrefcount(x) for x in touched]


def test_reference_counts() -> None:
    succeed()
    before = references()
    for _ in range(3):
        succeed()
        fail_to_validate()
    assert references() == before


@EVERY
def test_no_block_leaks(case: Callable[[], None]) -> None:
    """Memory blocks of the interpreter do not grow with the number of calls."""

    check_no_blocks_leak(case, 200)


@pytest.mark.parametrize("case", [succeed, fail_to_validate, read, load], ids=lambda c: c.__name__)
def test_resident_memory_does_not_grow(case: Callable[[], None]) -> None:
    process = psutil.Process()

    def grown() -> int:
        before = process.memory_info().rss
        for _ in range(100):
            case()
        gc.collect()
        return int(process.memory_info().rss - before)

    grown()
    assert min(grown() for _ in range(3)) < 2**20

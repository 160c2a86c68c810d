"""Operators of torch that a file may call only with permission."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

import fxpress
from fxpress import SerializeError, archive, checkpoint, pipeline
from fxpress._files.format.torch_facts import refusal
from fxpress._files.serde.damage import UnknownNameError
from fxpress._files.serde.objects import _dict_to_dataclass
from fxpress._files.serde.targets import find_target
from fxpress._torch import serde as compat
from fxpress.serialize import (
    ExportedProgramDeserializer,
    GraphModuleDeserializer,
    deserialize,
    serialize,
)
from tests.support.reading_cases import edited, node_of, top

AUTOGRAD = "torch.export.custom_ops._call_custom_autograd_function_in_pre_dispatch"
# Text in a file -> the name that allows it. Some are not in each release of torch.
REFUSED = {
    "torch.ops.aten.from_file.default": "aten.from_file",
    "torch.ops.aten.from_file.out": "aten.from_file",
    "torch.ops.aten.save.default": "aten.save",
    "torch.ops.aten.set_.source_Storage_storage_offset": "aten.set_",
    "torch.ops.aten.set_.source_Tensor_storage_offset": "aten.set_",
    "torch.ops.aten._reshape_alias.default": "aten._reshape_alias",
    "torch.ops.aten._reshape_alias_copy.out": "aten._reshape_alias_copy",
    "torch.ops.aten._nested_view_from_buffer.default": "aten._nested_view_from_buffer",
    "torch.ops.aten._sparse_csr_tensor_unsafe.default": "aten._sparse_csr_tensor_unsafe",
    "torch.ops.aten.sparse_coo_tensor.indices_size": "aten.sparse_coo_tensor",
    "torch.ops.inductor._alloc_from_pool.default": "inductor._alloc_from_pool",
    "torch.ops.inductor.resize_storage_bytes_.default": "inductor.resize_storage_bytes_",
    "torch.ops.prim.Print.default": "prim.Print",
    "torch.ops.profiler._record_function_enter_new.default": "profiler._record_function_enter_new",
    "torch.ops.mkldnn._linear_pointwise.default": "mkldnn._linear_pointwise",
    "torch.ops.c10d.barrier.default": "c10d.barrier",
    "torch.ops.higher_order.trace_wrapped": "higher_order.trace_wrapped",
    "torch.ops.higher_order.inductor_compiled_code": "higher_order.inductor_compiled_code",
    AUTOGRAD: AUTOGRAD,
}


def with_call(target: Any, *args: Any, result: str = "linear", **kwargs: Any) -> ExportedProgram:
    """Return a program with one more call, whose result is described like that of another node."""
    program = top()
    graph = program.graph
    described = next(node for node in graph.nodes if node.name == result)
    with graph.inserting_before(graph.output_node()):
        added = graph.call_function(target, args, kwargs)
    added.meta = dict(described.meta)
    program.graph_module.recompile()
    return program


def maps_a_file(path: Path) -> ExportedProgram:
    return with_call(torch.ops.aten.from_file.default, str(path), True, 4)


@pytest.mark.parametrize("text", REFUSED)
def test_refused_unless_allowed_by_name(text: str) -> None:
    try:
        find_target(text)
    except UnknownNameError:
        pytest.skip("this torch does not have it")

    def edit(stored: Any) -> None:
        node_of(stored, "topk")["target"] = text

    written = edited(serialize(top()), edit)
    with pytest.raises(SerializeError) as caught:
        deserialize(written)
    assert f"`{text}` is refused: " in str(caught.value)
    assert f"allow_operators=['{REFUSED[text]}']" in str(caught.value)
    namespace = text.removeprefix("torch.ops.").partition(".")[0]
    for name in (REFUSED[text], text, namespace):
        said = None
        try:
            deserialize(written, allow_operators=[name])
        except Exception as error:  # of arguments that the operator does not take
            said = str(error)
        assert said is None or "is refused" not in said


def test_an_operator_among_the_arguments() -> None:
    """An operator that another operator calls is refused too."""
    program = with_call(torch.ops.higher_order.auto_functionalized, torch.ops.aten.abs_.default)
    text = serialize(program).exported_program.decode()
    assert '{"as_operator": "torch.ops.aten.abs_.default"}' in text
    hostile = text.replace("torch.ops.aten.abs_.default", "torch.ops.aten.save.default")
    written = serialize(program)
    assert deserialize(written).graph.nodes
    written.exported_program = hostile.encode()
    with pytest.raises(SerializeError, match=r"allow_operators=\['aten\.save'\]"):
        deserialize(written)
    deserialize(written, allow_operators=("aten.save",))


def test_every_reader_of_programs(tmp_path: Path) -> None:
    program = maps_a_file(tmp_path / "mapped")
    path = tmp_path / "model.pt2"
    fxpress.save(program, path)
    written = serialize(program)
    stored = _dict_to_dataclass(compat.schema.ExportedProgram, json.loads(written.exported_program))
    parts = (written.state_dict, written.constants, written.example_inputs)
    pipeline.save_stages(program, tmp_path / "stages", 1)
    fxpress.save(program, tmp_path / "none.pt2", weights="none")

    def convert(**options: Any) -> None:
        target = tmp_path / f"converted-{options}"
        checkpoint.convert_weights(path, target, program=tmp_path / "none.pt2", stages=1, **options)

    readers: list[Callable[..., Any]] = [
        lambda **options: fxpress.load(path, **options),
        lambda **options: archive.load_pt2(path, **options),
        lambda **options: deserialize(written, **options),
        lambda **options: ExportedProgramDeserializer().deserialize(stored, *parts, **options),
        lambda **options: GraphModuleDeserializer().deserialize(
            stored.graph_module, *parts, **options
        ),
        lambda **options: pipeline.load_stage(tmp_path / "stages", 0, **options),
        convert,
    ]
    for read in readers:
        with pytest.raises(SerializeError, match=r"allow_operators=\['aten\.from_file'\]"):
            read()
        read(allow_operators=["aten.from_file"])
        for names in ("aten.from_file", [b"aten"], [1]):
            with pytest.raises(TypeError):
                read(allow_operators=names)
    assert not (tmp_path / "mapped").exists()


def test_parts_of_graphs(tmp_path: Path) -> None:
    written = serialize(maps_a_file(tmp_path / "mapped"))
    stored = _dict_to_dataclass(
        compat.schema.ExportedProgram, json.loads(written.exported_program)
    ).graph_module
    with pytest.raises(SerializeError, match="is refused"):
        GraphModuleDeserializer().deserialize_operator("torch.ops.aten.from_file.default")
    with pytest.raises(SerializeError, match="is refused"):
        GraphModuleDeserializer().deserialize_graph(stored.graph)
    mine = GraphModuleDeserializer()
    mine.deserialize(stored, written.state_dict, written.constants, allow_operators=["aten"])
    target = mine.deserialize_operator("torch.ops.aten.from_file.default")
    assert target is torch.ops.aten.from_file.default


class _OwnOperator(torch._ops.HigherOrderOperator):
    def __init__(self, name: str = "tests_own_operator") -> None:
        super().__init__(name)

    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args)


def test_operators_from_outside_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """They need no permission, because the caller has registered them."""
    library = torch.library.Library("tests_of_refused", "DEF")
    library.define("from_file(str filename) -> Tensor")
    program = with_call(torch.ops.tests_of_refused.from_file.default, "name")
    assert serialize(deserialize(serialize(program))).exported_program
    own = _OwnOperator()
    written = serialize(with_call(own, 1))
    assert deserialize(written).graph.nodes
    # One of a later torch, which the table does not have, is torch's.
    monkeypatch.setattr(_OwnOperator, "__module__", "torch._higher_order_ops.later")
    with pytest.raises(SerializeError, match=r"'higher_order\.tests_own_operator'"):
        deserialize(written)
    deserialize(written, allow_operators=["higher_order.tests_own_operator"])


NEW_PROCESS = """
import json, torch
from fxpress._files.format.torch_facts import refusal
for name in ("torch.distributed._symmetric_memory", "torch.distributed._functional_collectives",
             "torch.distributed.fsdp", "torch.distributed.rpc", "torch.distributed.tensor",
             "torch._inductor.lowering", "torch.ao.quantization.fx._decomposed",
             "torch.nn.attention.varlen", "torch._prims.rng_prims", "torch.onnx"):
    try:
        __import__(name)
    except ImportError:
        pass
found = {}
for schema in torch._C._jit_get_all_schemas():
    text = schema.name.replace("::", ".") + "." + (schema.overload_name or "default")
    found[text] = [str(each.type) for each in schema.arguments], [a.name for a in schema.arguments]
for name in torch._ops._higher_order_ops:
    found["higher_order." + name] = [], []
print(json.dumps({name: (refusal("torch.ops." + name), *of) for name, of in found.items()}))
"""
MAY_BE_CALLED = {
    *("aten", "prims", "export", "quantized", "quantized_decomposed"),
    *("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "torch_nn", "pippy"),
}


def test_all_operators_that_torch_has() -> None:
    """All operators of torch are refused, but for the listed namespaces.

    A process without code of others shows what torch, of whatever release, registers itself.
    """
    run = [sys.executable, "-W", "ignore", "-c", NEW_PROCESS]
    found = json.loads(subprocess.run(run, check=True, stdout=subprocess.PIPE).stdout)
    assert len(found) > 3000
    for name, (reason, kinds, arguments) in found.items():
        namespace = name.partition(".")[0]
        if namespace == "higher_order":
            continue
        if name == "aten.dist_backward.default" or name.startswith(("aten._print.", "aten.warn.")):
            assert reason is not None
            continue
        outside = (
            any(re.match("Storage|RRef|Future", kind) for kind in kinds) or "filename" in arguments
        )
        if outside or namespace not in MAY_BE_CALLED:
            assert reason is not None, name
        elif not {"indices", "stride", "nested_strides"} & {*arguments, *_ends(arguments)}:
            assert reason is None, name
    refused = {name for name in found if name.startswith("higher_order.") and found[name][0]}
    assert {"higher_order.trace_wrapped", "higher_order.inductor_compiled_code"} <= refused
    assert not {"higher_order.cond", "higher_order.while_loop", "higher_order.scan"} & refused


def _ends(names: Sequence[str]) -> set[str]:
    return {name.rpartition("_")[2] for name in names}


@pytest.mark.parametrize(
    "view", ["as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter"]
)
def test_strides_that_torch_checks(view: str) -> None:
    """A file may call these, because they fail where they would reach beyond the storage."""
    overload = getattr(torch.ops.aten, view).default
    assert refusal(f"torch.ops.aten.{view}.default") is None
    for size, stride, offset in (([5], [1], 0), ([2], [1], 3), ([2], [4], 0)):
        given = (torch.zeros(4), torch.zeros(size)) if "scatter" in view else (torch.zeros(4),)
        with pytest.raises(RuntimeError, match="bounds"):
            overload(*given, size, stride, offset)


def test_sparse_tensors_that_torch_does_not_check() -> None:
    """Why they are refused: an index beyond the size makes a tensor that kernels trust."""
    made = torch.ops.aten.sparse_coo_tensor.indices_size(torch.tensor([[1000]]), torch.ones(1), [3])
    assert int(made._indices().max()) > made.shape[0]

"""Triton kernels and compiled models in graphs; test classes replace Triton."""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.codecache  # looks for Triton when it is imported, as does the next
import torch._inductor.ir
from torch import Tensor, nn
from torch._export.serde import serialize as torch_serialize
from torch._higher_order_ops import aoti_call_delegate
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
)
from torch.export import ExportedProgram, export

from fxpress import serialize
from fxpress._torch import serde as compat
from fxpress._torch.versions import features
from tests.support.serialized import first_difference, with_numbered_graphs

CAN_USE_TRITON: Any = compat.can_use_triton  # the tests have another in its place


class JITFunction:
    """The attributes of a Triton kernel that serialization reads."""

    def __init__(self, caches: Any, parameters: list[tuple[str, bool, str]], **more: Any) -> None:
        def scaled(x: Any, y: Any) -> None: ...

        self.fn = scaled
        self.__name__ = scaled.__name__
        self.device_caches = caches
        self.params = [
            types.SimpleNamespace(name=n, is_constexpr=c, annotation=a) for n, c, a in parameters
        ]
        self.arg_names = [name for name, _, _ in parameters]
        self.constexprs = [i for i, (_, constant, _) in enumerate(parameters) if constant]
        vars(self).update(more)


class Autotuner:
    def __init__(self, fn: Any, configs: list[Any]) -> None:
        self.fn = fn
        self.configs = configs


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, members in (
        ("triton", {}),
        ("triton.runtime", {}),
        ("triton.runtime.autotuner", {"Autotuner": Autotuner}),
        ("triton.runtime.jit", {"JITFunction": JITFunction}),
    ):
        module = types.ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(compat, "can_use_triton", lambda: True)
    monkeypatch.setattr(torch_serialize, "has_triton", lambda **_: True)


PARAMETERS = [("x", False, "*fp32"), ("out", False, ""), ("n", False, "i32"), ("BLOCK", True, "")]


def entry(hash_: str = "abc", signature: Any = None, **metadata: Any) -> Any:
    made = types.SimpleNamespace(metadata=types.SimpleNamespace(hash=hash_, num_warps=4))
    vars(made.metadata).update(metadata)
    if signature is not None:
        made.src = types.SimpleNamespace(signature=signature)
    return made


def kernel(cache: dict[str, Any], parameters: Any = PARAMETERS, **more: Any) -> JITFunction:
    return JITFunction({0: (cache, None)}, parameters, **more)


class Model(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sin() + 1


def program(made: Any, block: Any = 16, **changes: Any) -> ExportedProgram:
    """The node "sin" is a call of a kernel."""
    result = export(Model(), (torch.randn(4),), strict=False)
    graph = result.graph
    sin = next(n for n in graph.nodes if n.target == torch.ops.aten.sin.default)
    (x,) = sin.args
    given = {"x": x, "out": x, "n": 4, "BLOCK": block}
    with graph.inserting_before(sin):
        call = graph.call_function(
            triton_kernel_wrapper_functional,
            (),
            {
                "kernel_idx": kernel_side_table.add_kernel(made),
                "constant_args_idx": 0,
                "grid": [(1, 1, 1)],
                "tma_descriptor_metadata": {},
                "kwargs": given,
                "tensors_to_clone": ["out"],
                **changes,
            },
        )
        call.meta["val"] = {"out": sin.meta["val"]}
        taken = graph.call_function(operator.getitem, (call, "out"))
        taken.meta["val"] = sin.meta["val"]
    sin.replace_all_uses_with(taken)
    graph.erase_node(sin)
    result.graph_module.recompile()
    return result


CASES: dict[str, Callable[[], ExportedProgram]] = {
    "one": lambda: program(kernel({"key": entry()})),
    "settings": lambda: program(
        kernel({"key": entry(shared=True, num_cpu_threads=2, tile_width=8, base_pe=1)})
    ),
    "shared memory": lambda: program(kernel({"key": entry(shared=512)})),
    "compiled for types": lambda: program(kernel({"key": entry(signature={"x": "*bf16"})})),
    "by constants": lambda: program(
        kernel(
            {
                "[('*fp32', 'D'), ('constexpr', 8)]": entry("eight"),
                "[('*fp32', 'D'), ('constexpr', 16)]": entry("sixteen"),
                "[('*fp32', 'D')]": entry("none"),
            }
        )
    ),
    "by a text": lambda: program(
        kernel(
            {
                "[('constexpr', torch.float16)]": entry("half"),
                "[('constexpr', True)]": entry("yes"),
            }
        ),
        torch.float16,
    ),
    "tuned": lambda: program(
        Autotuner(
            kernel({"a": entry("a", num_stages=3), "b": entry("b", num_stages=5)}, PARAMETERS[:3]),
            [types.SimpleNamespace(num_stages=5, num_warps=4)],
        )
    ),
    "older caches": lambda: program(older()),
}
REFUSED: dict[str, Callable[[], ExportedProgram]] = {
    "no caches": lambda: program(without_caches()),
    "two devices": lambda: program(JITFunction({0: ({},), 1: ({},)}, PARAMETERS)),
    "two fit": lambda: program(kernel({"a": entry("a"), "b": entry("b")}, PARAMETERS[:3])),
    "none fits": lambda: program(kernel({"a": entry("a"), "b": entry("b")})),
    "not tuned so": lambda: program(
        Autotuner(
            kernel({"a": entry("a"), "b": entry("b")}, PARAMETERS[:3]),
            [types.SimpleNamespace(num_warps=8)],
        )
    ),
    "constants first": lambda: program(
        kernel({"key": entry()}, [PARAMETERS[3], *PARAMETERS[:3]]), kwargs={"BLOCK": 16, "n": 4}
    ),
    "grid": lambda: program(kernel({"key": entry()}), grid=(1,)),
    "index": lambda: program(kernel({"key": entry()}), kernel_idx="0"),
}


def older() -> JITFunction:
    made = kernel({})
    del made.device_caches
    made.cache = {0: {"key": entry("old")}}
    return made


def without_caches() -> JITFunction:
    made = kernel({})
    del made.device_caches
    return made


@pytest.mark.parametrize("name", CASES)
def test_triton(name: str) -> None:
    made = CASES[name]()
    expected = torch_serialize.serialize(made).exported_program
    found, wanted = serialize.serialize(made).exported_program, with_numbered_graphs(expected)
    assert found == wanted, first_difference(found, wanted)


@pytest.mark.parametrize("name", REFUSED)
def test_calls_of_kernels_that_torch_refuses(name: str) -> None:
    made = REFUSED[name]()
    for call in (torch_serialize.serialize, serialize.serialize):
        with pytest.raises(serialize.SerializeError, match="Failed serializing node"):
            call(made)


def test_what_a_kernel_was_run_in() -> None:
    made = program(kernel({"key": entry("abc")}))
    node = next(n for n in made.graph.nodes if n.target is triton_kernel_wrapper_functional)
    found = serialize.get_triton_kernel_and_cache_entry(node)
    assert found == torch_serialize.get_triton_kernel_and_cache_entry(node)
    with pytest.raises(AssertionError, match="expected triton_kernel_wrapper_functional"):
        serialize.get_triton_kernel_and_cache_entry(made.graph.output_node())
    config = types.SimpleNamespace(num_warps=4, num_stages=1)
    for other in (config, types.SimpleNamespace(num_warps=8), types.SimpleNamespace()):
        assert serialize.is_metadata_matched(config, other) == (
            torch_serialize.is_metadata_matched(config, other)
        )


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "can_use_triton", lambda: False)
    with pytest.raises(serialize.SerializeError, match="triton required to serialize"):
        serialize.serialize(program(kernel({"key": entry()})))


class Lowered(nn.Module):
    aoti_path = "model.pt2"


def delegate(weights: Any = ()) -> ExportedProgram:
    """The node "sin" is a call of a compiled model."""
    result = export(Model(), (torch.randn(4),), strict=False)
    graph = result.graph
    sin = next(n for n in graph.nodes if n.target == torch.ops.aten.sin.default)
    (x,) = sin.args
    result.graph_module.lowered = Lowered()
    with graph.inserting_before(x):
        lowered = graph.get_attr("lowered")
    with graph.inserting_before(sin):
        args = (lowered, None, [x] if weights == () else weights, [x])
        call = graph.call_function(aoti_call_delegate, args)
        call.meta["val"] = [sin.meta["val"]]
        taken = graph.call_function(operator.getitem, (call, 0))
        taken.meta["val"] = sin.meta["val"]
    sin.replace_all_uses_with(taken)
    graph.erase_node(sin)
    return result


@pytest.mark.parametrize("weights", [(), None, []])
def test_compiled_models(weights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = delegate(weights)
    # The verifiers of torch and of fxpress know lowered modules of other classes alone.
    monkeypatch.setattr(ExportedProgram, "validate", lambda self: None)
    expected = torch_serialize.serialize(made).exported_program
    found, wanted = serialize.serialize(made).exported_program, with_numbered_graphs(expected)
    assert found == wanted, first_difference(found, wanted)
    del made.graph_module.lowered
    with pytest.raises(serialize.SerializeError, match="owning_module does not have attribute"):
        serialize.serialize(made)


def test_whether_triton_can_be_used_is_asked_as_by_torch() -> None:
    options = {"include_cpu": True} if features.triton_on_cpu else {}
    assert getattr(CAN_USE_TRITON, "keywords", {}) == options

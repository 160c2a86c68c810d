"""Nothing that `deserialize` reads is run, imported, or slow out of proportion."""

from __future__ import annotations

import io
import json
import pickle
from collections import defaultdict, namedtuple
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch._export.serde import serialize as torch_serialize
from torch.export import export
from torch.utils import _pytree as pytree

from fxpress import UnsupportedError
from fxpress._files.serde.expressions import parse
from fxpress._files.serde.targets import find_target, source_function
from fxpress.serialize import SerializeError, deserialize, serialize
from tests.support.deserialized import assert_reads_as_torch
from tests.support.reading_cases import dynamic, edited, node_of, top

HOSTILE_EXPRESSIONS = (
    "__import__('os').system('touch /tmp/fxpress-was-here')",
    "Symbol.__class__",
    "(lambda: 1)()",
    "[s0 for s0 in ()]",
    "Symbol('s0', evil=True)",
    "Symbol('s0', positive=1)",
    "Pow(Integer(10), Integer(1000000000))",
    "Pow(Pow(Pow(Integer(10), Integer(1000)), Integer(1000)), Integer(1000))",
    "exp(Mul(Integer(1000000000000), log(Integer(2))))",
    "Pow(E, Mul(Integer(1000000000000), log(Integer(2))))",
    "Pow(Integer(2), Rational(3000000000001, 3))",
    "floor(exp(Integer(1000000000000)))",
    f"sqrt(Integer({7**2000}))",
    "Max(" + ", ".join(f"Symbol('s{i}')" for i in range(300)) + ")",
    "(a + b + c + d) ** 300 % e",
    "Pow(Pow(Symbol('s77'), Integer(40)), Integer(40))",
    "PowByNatural(Integer(3), Integer(1000000000))",
    "LShift(Integer(1), Integer(1000000000))",
    "2**2**2**2**2**2",
    "Float('1.0', precision=1000000000)",
    "factorial(Integer(100000000))",
    "Integer('os')",
    "(" * 5000,
    "-" * 100000 + "1",
    "Add(" * 300 + ")" * 300,
    "",
    "s0 +",
    "'text'",
    "Symbol()",
    "\\x00",
)


@pytest.mark.parametrize("text", HOSTILE_EXPRESSIONS, ids=lambda t: t[:20])
def test_expressions_are_not_run(text: str) -> None:
    def edit(stored: Any) -> None:
        values = stored["graph_module"]["graph"]["tensor_values"]
        sizes = next(v["sizes"] for v in values.values() if "as_expr" in str(v["sizes"]))
        sizes[0]["as_expr"]["expr_str"] = text

    with pytest.raises(SerializeError):
        deserialize(edited(serialize(dynamic()), edit))


@pytest.mark.parametrize(
    "target",
    [
        "torch.load",
        "torch.hub.load",
        "torch.ops.load_library",
        "torch.ops.aten.add",
        "torch.ops.aten.no_such_operator.default",
        "torch._C._set_grad_enabled.__call__",
        "math.__loader__",
        "_operator.attrgetter",
        "#nobody:knows",
        "os.system",
        "",
        "torch.ops.aten.__class__.__subclasses__",
    ],
)
def test_targets_are_operators(target: str) -> None:
    def edit(stored: Any) -> None:
        node_of(stored, "topk")["target"] = target

    with pytest.raises(SerializeError):
        deserialize(edited(serialize(top()), edit))


Pair = namedtuple("Pair", ["left", "right"])


def test_treespecs_of_every_kind() -> None:
    if Pair not in pytree.SUPPORTED_SERIALIZED_TYPES:
        pytree._register_namedtuple(Pair, serialized_type_name="fxpress_tests.Pair")

    class Takes(nn.Module):
        def forward(self, d: Any, e: Any, p: Any) -> Any:
            return {"a": d["x"] + e["y"], "b": [p.left, (p.right,)]}

    many: Any = defaultdict(list)
    many["y"] = torch.ones(2)
    example = ({"x": torch.ones(2)}, many, Pair(torch.ones(2), torch.ones(2)))
    program = export(Takes(), example, strict=False)
    assert_reads_as_torch(serialize(program))


def test_a_source_function_runs_nothing() -> None:
    def edit(stored: Any) -> None:
        node_of(stored, "topk")["metadata"]["source_fn_stack"] = (
            "a,torch.nn.modules.linear.Linear;b,torch.no.such;c,torch._inductor_lazy;d,os.system;"
            "e,torch.ops.aten.add.Tensor;f,torch.Tensor.T;g,math.ceil;h,_operator.add"
        )

    read = deserialize(edited(serialize(top()), edit))
    stack = next(n for n in read.graph.nodes if "topk" in n.name).meta["source_fn_stack"]
    named = dict(stack)
    assert named["a"] is nn.Linear
    assert named["d"] == "os.system"
    assert named["e"] is torch.ops.aten.add.Tensor


def test_a_pickle_that_runs_code_is_not_opened() -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (exec, ("raise SystemExit('it ran')",))

    written = serialize(top())
    evil = pickle.dumps({"x": Evil()})
    for part in ("state_dict", "constants"):
        with pytest.raises(SerializeError, match="allow_pickle"):
            deserialize(replace(written, **{part: evil}))


def test_a_torchscript_archive_is_not_run() -> None:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.ReLU()), buffer)
    written = serialize(top())
    for part in ("state_dict", "constants"):
        with pytest.raises(SerializeError, match="TorchScript"):
            deserialize(replace(written, **{part: buffer.getvalue()}))


HOSTILE_NAME = "x=(open('/tmp/fxpress-was-here','w').close())"


def test_names_are_identifiers() -> None:
    text = serialize(top()).exported_program.decode()
    for name in ("x", "add", "getitem_1"):
        if f'"{name}"' in text:
            hostile = text.replace(f'"{name}"', json.dumps(HOSTILE_NAME))
            with pytest.raises(SerializeError):
                deserialize(replace(serialize(top()), exported_program=hostile.encode()))


def test_a_graph_in_the_signature() -> None:
    graph = {"inputs": [{"as_int": 1}], "outputs": [], "nodes": [], "tensor_values": {}}
    graph |= {"sym_int_values": {}, "sym_bool_values": {}}

    def edit(stored: Any) -> None:
        spec = stored["graph_module"]["signature"]["input_specs"][-1]
        spec["user_input"]["arg"] = {"as_graph": {"name": "g", "graph": graph}}

    with pytest.raises(SerializeError, match="an argument of the signature is a graph"):
        deserialize(edited(serialize(top()), edit))


def test_questions_leave_nothing_behind() -> None:
    with pytest.raises(SerializeError):
        find_target("torch.ops.fxpress_nobody.knows.this")
    assert "fxpress_nobody" not in vars(torch.ops)
    assert source_function("torch.os.system") == "torch.os.system"
    assert source_function("torch.nn.functional.relu") is nn.functional.relu


def test_false_is_no_symbol() -> None:
    assert parse("Or(false, Symbol('a'))", {}).free_symbols == {sympy.Symbol("a")}


def test_triton_kernels_are_refused() -> None:
    def edit(stored: Any) -> None:
        node = node_of(stored, "topk")
        node["target"] = "torch.ops.higher_order.triton_kernel_wrapper_functional"

    written = edited(serialize(top()), edit)
    with pytest.raises(SerializeError, match="deserialize nyi"):
        torch_serialize.deserialize(written)
    with pytest.raises(UnsupportedError, match="deserialize nyi"):
        deserialize(written)


def test_whatever_sympy_raises_is_an_expression_error() -> None:
    with pytest.raises(SerializeError, match="not an expression"):
        parse("1 % Tuple(1)", {})
    for name in ("Add", "Mul", "Pow"):
        with pytest.raises(SerializeError, match="expected numbers as arguments of"):
            parse(f"{name}(2, Tuple(1))", {})

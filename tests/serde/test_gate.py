"""Texts of a file never become source text: payloads in files, and their results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export.serde import serialize as torch_serialize
from torch.export import Dim, export

from fxpress import serialize as fx
from fxpress.serialize import SerializeError, deserialize, serialize
from tests.support.reading_cases import edited, node_of, top
from tests.support.serialized import assert_travels_as_torch
from tests.support.text_kinds import assert_known_kinds

RAN = "fxpress_payload_ran"
CODE = f"__import__('sys').modules.__setitem__('{RAN}', 1)"


@pytest.fixture(autouse=True)
def nothing_runs() -> Iterator[None]:
    sys.modules.pop(RAN, None)
    yield
    assert sys.modules.pop(RAN, None) is None


class Named(nn.Module):
    """Keyword arguments, a dict, a text, a parameter, a buffer and a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))
        self.offset = torch.ones(4)

    def forward(self, x: Tensor, d: dict[str, Tensor], mode: str, *, scale: Tensor) -> Any:
        if x.shape[0] * 2 > d["k"].shape[0] + 1:
            x = x + self.offset
        return {"out": self.linear(x).relu() * scale + self.count}


@pytest.fixture(scope="module")
def artifact() -> fx.SerializedArtifact:
    rows = {0: Dim.AUTO}
    program = export(
        Named(),
        (torch.randn(5, 4), {"k": torch.randn(5, 4)}, "mean"),
        {"scale": torch.ones(4)},
        dynamic_shapes={"x": rows, "d": {"k": rows}, "mode": None, "scale": None},
        strict=False,
    )
    assert program._guards_code
    return serialize(program)


def calls(stored: Any) -> Any:
    return stored["graph_module"]["module_call_graph"][0]["signature"]


def inputs(stored: Any, kind: str) -> Any:
    specs = stored["graph_module"]["signature"]["input_specs"]
    return next(spec[kind] for spec in specs if kind in spec)


def set_key(spec: str, old: str, new: str) -> str:
    return spec.replace(json.dumps(json.dumps(old))[1:-1], json.dumps(json.dumps(new))[1:-1])


def argument_name(stored: Any) -> None:
    calls(stored)["forward_arg_names"][0] = f"x={CODE}):\n    '''#"


def keyword(stored: Any) -> None:
    calls(stored)["in_spec"] = set_key(calls(stored)["in_spec"], "scale", f"scale={CODE}")
    calls(stored)["forward_arg_names"] = None


def quoted_keyword(stored: Any) -> None:
    calls(stored)["in_spec"] = set_key(calls(stored)["in_spec"], "scale", f"':{CODE},'scale")


def input_key(stored: Any) -> None:
    calls(stored)["in_spec"] = set_key(calls(stored)["in_spec"], "k", f'"+str({CODE})+"')


def parameter(stored: Any) -> None:
    inputs(stored, "parameter")["parameter_name"] = f'linear."+{CODE}+"'


def buffer(stored: Any) -> None:
    inputs(stored, "buffer")["buffer_name"] = f'c", {CODE}) #'


def constant(stored: Any) -> None:
    inputs(stored, "tensor_constant")["tensor_constant_name"] = "__class__.offset"


def guard(stored: Any) -> None:
    stored["guards_code"] = [f"{CODE} is None"]


def guard_text(stored: Any) -> None:
    stored["guards_code"] = [f"L['mode'] == '\" + str({CODE.replace(chr(39), '')}) + \"'"]


def constant_text(stored: Any) -> None:
    text = {"as_string": f"other' or {CODE} or '"}
    inputs(stored, "constant_input")["value"] = text
    for argument in stored["graph_module"]["graph"]["inputs"]:
        if "as_string" in argument:
            argument.update(text)


def symbol(stored: Any) -> None:
    text = json.dumps(stored).replace("Symbol('s", f"Symbol('{CODE.replace(chr(39), '')}")
    stored.clear()
    stored.update(json.loads(text))


def module_stack(stored: Any) -> None:
    node_of(stored, "relu")["metadata"]["nn_module_stack"] = f'k,a"+{CODE}+",torch.nn.Module'


def source_node(stored: Any) -> None:
    source = {"name": f"a\n{CODE}", "target": "b", "graph_id": 1, "pass_name": "", "action": ""}
    node_of(stored, "relu")["metadata"]["from_node"] = json.dumps([source])


def stack_trace(stored: Any) -> None:
    trace = f'File "a", line 1, in f\n    x\r{CODE}'
    node_of(stored, "relu")["metadata"]["stack_trace"] = trace


def value_name(stored: Any) -> None:
    node_of(stored, "relu")["outputs"][0]["as_tensor"]["name"] = f"relu, {CODE}"


def node_argument(stored: Any) -> None:
    node_of(stored, "relu")["inputs"][0]["name"] = f"{CODE},"


def target(stored: Any) -> None:
    node_of(stored, "relu")["target"] = f"torch.ops.aten.{CODE}"


def module_call(stored: Any) -> None:
    stored["graph_module"]["module_call_graph"].append({"fqn": f'a"+{CODE}', "signature": None})


def field_name(stored: Any) -> None:
    fields = {"field_names": [CODE]}
    stored["graph_module"]["treespec_namedtuple_fields"] = {"a.b": fields}


CASES: dict[Callable[[Any], None], str] = {
    argument_name: r"module_call_graph\[0\]\.signature\.forward_arg_names\[0\]: .x=__imp",
    keyword: "in_spec: .scale=__imp",
    quoted_keyword: "in_spec: .*scale",
    input_key: "in_spec: ",
    parameter: "input_specs.*parameter.parameter_name: 'linear",
    buffer: "input_specs.*buffer.buffer_name: ",
    constant: "input_specs.*tensor_constant.tensor_constant_name: '__class__.offset'",
    guard: r"guards_code\[0\]: \"__import__",
    guard_text: r"guards_code\[0\]: ",
    constant_text: "as_string: ",
    symbol: "as_expr.expr_str: ",
    module_stack: "metadata.'nn_module_stack'.: ",
    source_node: r"from_node\[0\].name: ",
    stack_trace: "metadata.'stack_trace'.: ",
    value_name: r"graph.nodes\[\d+\].outputs\[0\].as_tensor.name: ",
    node_argument: r"inputs\[0\].name: ",
    target: r"nodes\[\d+\].target: ",
    module_call: r"module_call_graph\[\d+\].fqn: ",
    field_name: r"treespec_namedtuple_fields\['a.b'\].field_names\[0\]: ",
}


@pytest.mark.parametrize("edit", CASES, ids=lambda edit: edit.__name__)
def test_bytes(artifact: fx.SerializedArtifact, edit: Callable[[Any], None]) -> None:
    with pytest.raises(SerializeError, match=CASES[edit]):
        deserialize(edited(artifact, edit))


@pytest.mark.parametrize("edit", CASES, ids=lambda edit: edit.__name__)
def test_objects(artifact: fx.SerializedArtifact, edit: Callable[[Any], None]) -> None:
    stored = json.loads(artifact.exported_program)
    edit(stored)
    program = torch_serialize._dict_to_dataclass(torch_serialize.ExportedProgram, stored)
    with pytest.raises(SerializeError, match=CASES[edit]):
        fx.ExportedProgramDeserializer().deserialize(
            program, artifact.state_dict, artifact.constants, artifact.example_inputs
        )


@pytest.mark.parametrize("edit", [argument_name, guard, constant_text], ids=lambda e: e.__name__)
def test_torch_runs_them(artifact: fx.SerializedArtifact, edit: Callable[[Any], None]) -> None:
    """torch runs these payloads, so they are real ones."""
    changed = edited(artifact, edit)
    program = torch_serialize.deserialize(
        torch_serialize.SerializedArtifact(
            changed.exported_program, changed.state_dict, changed.constants, changed.example_inputs
        )
    )
    try:
        module = program.module()
        module(torch.randn(5, 4), {"k": torch.randn(5, 4)}, "mean", scale=torch.ones(4))
    except Exception:
        pass
    assert sys.modules.pop(RAN, None) is not None


def test_what_is_legitimate_is_read(artifact: fx.SerializedArtifact) -> None:
    program = deserialize(artifact)
    given = (torch.randn(5, 4), {"k": torch.randn(5, 4)}, "mean")
    result = program.module()(*given, scale=torch.ones(4))
    assert set(result) == {"out"}


@pytest.mark.parametrize("key", ["a b", "x.y", "1", "", "ключ", "class", "a(b)", "{}", "a#b"])
def test_keys_of_inputs(key: str) -> None:
    class Keyed(nn.Module):
        def forward(self, d: dict[str, Tensor]) -> dict[str, Tensor]:
            return {key: d[key] + 1, 'it\'s "so"': d[key]}

    program = export(Keyed(), ({key: torch.ones(2)},), strict=False)
    read = deserialize(serialize(program))
    assert set(read.module()({key: torch.ones(2)})) == {key, 'it\'s "so"'}


@pytest.mark.parametrize("name", ["it's", 'a"b', "a\\b"])
def test_keys_that_torch_cannot_call(name: str) -> None:
    class Keyed(nn.Module):
        def forward(self, d: dict[str, Tensor]) -> Tensor:
            return d[name] + 1

    program = export(Keyed(), ({name: torch.ones(2)},), strict=False)
    with pytest.raises(SerializeError, match="in_spec"):
        deserialize(serialize(program))


@pytest.mark.parametrize("name", ["a-b", "a b", "f(x)", "вес", "print"])
def test_names_of_state(name: str) -> None:
    model = nn.Module()
    model.register_parameter(name, nn.Parameter(torch.ones(2)))

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            return x + getattr(self.inner, name)

    read = deserialize(serialize(export(Holder(), (torch.ones(2),), strict=False)))
    assert read.module()(torch.ones(2)).tolist() == [2, 2]


def test_keys_of_a_pickled_state() -> None:
    program = top()
    artifact = serialize(program)
    names = {**program.state_dict, "a.__class__.b": torch.ones(1)}
    with pytest.raises(SerializeError, match=r"state_dict: 'a\.__class__\.b'"):
        deserialize(replace(artifact, state_dict=names))
    with pytest.raises(SerializeError, match="constants: expected a string"):
        deserialize(replace(artifact, constants={1: torch.ones(1)}))


def test_keys_of_example_inputs(caplog: pytest.LogCaptureFixture) -> None:
    """Example inputs are not part of the program, which is read without them."""
    artifact = serialize(top())
    key = f'"+str({CODE})+"'
    read = deserialize(replace(artifact, example_inputs=(({key: torch.ones(1)},), {})))
    assert read.example_inputs is None
    assert "example_inputs: " in caplog.text
    read.module()


def test_parts() -> None:
    reader = fx.GraphModuleDeserializer()
    schema = torch_serialize
    for name in ("a b", f"{CODE}"):
        with pytest.raises(SerializeError, match=r"as_tensor\.name"):
            reader.deserialize_input(
                schema.Argument.create(as_tensor=schema.TensorArgument(name=name))
            )
        with pytest.raises(SerializeError, match="name: "):
            reader.sync_fx_node(name, reader.graph.placeholder("x"))


def test_the_value_is_shortened(artifact: fx.SerializedArtifact) -> None:
    def edit(stored: Any) -> None:
        calls(stored)["forward_arg_names"][0] = "é=" * 100000

    with pytest.raises(SerializeError) as caught:
        deserialize(edited(artifact, edit))
    assert len(str(caught.value)) < 400


# ---- names that Dynamo writes -------------------------------------------------------------------


class Reaches(nn.Module):
    """Calls a child that it finds in some way."""

    def __init__(self, find: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.add_module("0", nn.Linear(4, 4))
        self.find = find

    def forward(self, x: Tensor) -> Tensor:
        return self.find(self)(x)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    "find",
    [
        lambda m: getattr(m, "0"),
        lambda m: m._modules["0"],
        lambda m: m.get_submodule("0"),
        lambda m: dict(m.named_children())["0"],
        lambda m: next(iter(m.children())),
    ],
    ids=["getattr", "_modules", "get_submodule", "named_children", "children"],
)
def test_ways_to_a_child(find: Callable[[nn.Module], nn.Module], strict: bool) -> None:
    program = export(Reaches(find), (torch.ones(2, 4),), strict=strict)
    assert_travels_as_torch(program)
    assert_known_kinds(program)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("name", ["a-b", "a b", "x[0]", "ключ", "class", "a@1", "f()"])
def test_names_of_children(name: str, strict: bool) -> None:
    model = nn.ModuleDict({name: nn.ModuleList([nn.BatchNorm1d(4)])})
    model.forward = lambda x: model[name][0](x)  # type: ignore[method-assign]
    assert_known_kinds(export(model.eval(), (torch.ones(2, 4),), strict=strict))

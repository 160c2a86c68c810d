"""Guards on the inputs of a program's module: their texts, and the function that checks them."""

from __future__ import annotations

import inspect
import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim, _unlift, export

from fxpress._graphs.unflatten import guards
from tests.support.generated import examples
from tests.support.unlifted import guard_code


def signature_of(*names: str) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature([inspect.Parameter(name, kind) for name in names])


EXAMPLES: list[tuple[tuple[str, ...], tuple[Any, Any]]] = [
    (("x", "y"), ((1, 2), {})),
    (("x", "y"), ((1,), {"y": [2, {"k": 3}]})),
    (("x",), (([1] * 12,), {})),
    (("x", "x_1"), (((1, 2), 3), {})),
    (("flat_args",), (([1, 2],), {})),
    (("x",), (({"it's": 1, 3: 2},), {})),
]


def torchs_texts(signature: inspect.Signature, example: Any) -> list[Any]:
    return _unlift._get_input_paths(example, signature)


@pytest.mark.parametrize(("names", "example"), EXAMPLES, ids=str)
def test_inputs_are_named_as_by_torch(names: tuple[str, ...], example: Any) -> None:
    signature = signature_of(*names)
    inputs = guards.Inputs.bound(signature, example)
    keystr = torch.utils._pytree.keystr
    paths = torchs_texts(signature, example)
    assert inputs.sources == ["L" + keystr(path) for path in paths]
    assert inputs.shown == [path[0].key + keystr(path[1:]) for path in paths]


GUARDS = [
    "L['x'] == 3",
    "L['x'].size()[0] == L['y'].size()[1]",
    "L['x'][1].size()[0] <= 7",
    "L['x'][11].size()[0] + L['x'][1].size()[0] >= 2*L['x'][0].size()[0]",
    "((L['y'][1]['k'].size()[0]) == (2))",
    "L['flat_args'][0].size()[0] != L['flat_args'][1].size()[0]",
    "L['flat_args'][9].size()[0] == 1",
    "Mod(L['x'].size()[0], 3) != 0\n and math.floor(L['x'].size()[1]) < inf",
    "L['z'] is None",
]


@pytest.mark.parametrize(("names", "example"), EXAMPLES[:5], ids=str)
def test_guards_of_the_trace_are_those_of_torch(names: tuple[str, ...], example: Any) -> None:
    signature = signature_of(*names)
    inputs = guards.Inputs.bound(signature, example)
    paths = torchs_texts(signature, example)
    wanted = _unlift._force_ep_signature_match(GUARDS, paths)
    wanted = _unlift._force_gm_signature_match(wanted, signature)
    code = guards.of_trace(GUARDS, inputs, names)
    assert code == wanted
    ours = guards.as_module(code, inputs)
    theirs = _unlift._convert_guards_code_to_fn(wanted, paths)
    assert guard_code(ours) == guard_code(theirs)
    assert vars(ours).keys() == vars(theirs).keys()


_INTEGERS = st.integers(0, 40)


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    """Texts that the short cut for messages may take, and some that it may not."""

    def value() -> str:
        name = draw(st.sampled_from(["x", "y", "x_1"]))
        path = draw(st.sampled_from(["", "[1]", "['k']", "['k'][0]", '["k"]', "['a b']"]))
        size = draw(st.sampled_from(["", ".size()[0]", ".size()[12]", ".stride()[0]"]))
        number = str(draw(_INTEGERS))
        text = draw(st.sampled_from([f"{name}{path}{size}", number, f"({name})", f"-{number}"]))
        return str(text)

    sign = draw(st.sampled_from(["==", ">=", "<=", "!=", "<", "is"]))
    return f"{value()} {sign} {value()}"


@examples(200)
@given(comparisons())
def test_messages_are_as_python_writes_them(text: str) -> None:
    import ast

    assert guards._normalized(text) == ast.unparse(ast.parse(text, mode="eval"))


def program(shapes: Any, *args: Any) -> Any:
    class Model(nn.Module):
        def forward(self, *values: Any) -> Any:
            return [v + 1 for v in values if isinstance(v, torch.Tensor)]

    given = None if shapes is None else {"values": shapes}
    return export(Model(), args, dynamic_shapes=given, strict=False)


ROWS = Dim("rows", min=3, max=64)
PROGRAMS: list[Any] = [
    lambda: program(None, torch.ones(2, 3), 3, 2.5, "text", True),
    lambda: program(None, math.inf, -math.inf, math.nan, torch.ones(())),
    lambda: program(({0: ROWS}, {0: ROWS}), torch.ones(4), torch.ones(4)),
    lambda: program(({0: 2 * ROWS}, {0: 3 * ROWS + 1}), torch.ones(8), torch.ones(13)),
    lambda: program(({0: 2 * ROWS}, {0: 2 * ROWS}), torch.ones(8), torch.ones(8)),
    lambda: program((Dim.DYNAMIC, {0: Dim("n", min=4, max=9)}), 4, torch.ones(9)),
]


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_guards_of_placeholders_are_those_of_torch(number: int) -> None:
    exported = PROGRAMS[number]()
    signature = signature_of(*(f"values_{i}" for i in range(len(exported.example_inputs[0]))))
    placeholders = exported.graph.find_nodes(op="placeholder")
    paths = torchs_texts(signature, exported.example_inputs)
    ranges = exported.range_constraints
    wanted = _unlift._get_input_guards_for_graph(placeholders, ranges, paths)
    inputs = guards.Inputs.bound(signature, exported.example_inputs)
    assert guards.of_placeholders(placeholders, ranges, inputs.sources) == wanted
    assert wanted


def test_a_guard_that_is_too_deep_to_be_shown_is_shown_as_it_is() -> None:
    inputs = guards.Inputs.bound(signature_of("x"), ((1,), {}))
    deep = " + ".join(["L['x']"] * 1500) + " == 1"
    paths = torchs_texts(signature_of("x"), ((1,), {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = guard_code(guards.as_module([deep], inputs))
        try:
            theirs = guard_code(_unlift._convert_guards_code_to_fn([deep], paths))
        except RecursionError:  # torch 2.13 cannot show it
            return
    assert ours == theirs


def test_files_of_some_tools_get_no_guards() -> None:
    source = "def call(make, program):\n    return make(program)\n"
    scope: dict[str, Any] = {}
    exec(compile(source, "/somewhere/torchao/x.py", "exec"), scope)
    from fxpress.export import module

    exported = program(None, torch.ones(2))
    assert not hasattr(scope["call"](module, exported), "_guards_fn")
    assert hasattr(module(exported), "_guards_fn")

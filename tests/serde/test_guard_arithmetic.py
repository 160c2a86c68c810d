"""Guards of a file calculate with numbers: sequences would be repeated billions of times."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from fxpress._files.serde.guards import check_arithmetic
from fxpress.serialize import SerializeError, deserialize, serialize

EXAMPLES = (
    (torch.ones(2), 3, "sum", {"a b": [torch.ones(1), 2]}),
    {"n": 4, "mode": "m", "parts_0": "t", "flag": True},
)
NAMES = ["x", "k", "red", "cfg"]
NUMBERS = [
    "L['x'] * 9 == 1",
    "L['x'][0] * 9 == 1",
    "L['k'] * 9 ** 9 == 1",
    "L['n'] % 9 == -L['flag']",
    "L['cfg']['a b'][1] * 2 == 3",
    "L['cfg']['a b'][0].size()[0] * 2 == 3",
    "2*L['x'].size()[0] + L['x'].stride()[0] // 2 == math.floor(L['n'] / 2)",
    "math.pi * torch.sym_max(L['k'], 3) == 2 + max(L['x'].size()[0], 3)",
    "(L['k'] if L['red'] == 'sum' else 1) * L['x'].numel() == 1",
    "(L['k'] or 1) << 2 == 1",
    "L['red'] == 'sum' and L['x'].size() == L['x'].stride()",
    "L['unknown'] * 3 == 1",  # torch raises a NameError
    "L['cfg']['a b'] * 3 == 1",  # likewise: it is not an input
]
OTHERS = {
    "L['red'] * 9 == 1": "L['red']",
    "3 + L['mode'] == 1": "L['mode']",
    "L['mode'] % 9 == 1": "L['mode']",
    "L['red'][0] * 9 == 1": "L['red'][0]",
    "L['x'].size() * 9 == 1": "L['x'].size()",
    "-L['x'].stride() == 1": "L['x'].stride()",
    "L['x'].shape * 9 == 1": "L['x'].shape",
    "max(L['x'].size(), 3) * 9 == 1": "max(L['x'].size(), 3)",
    "torch.sym_min(2, L['red']) * 9 == 1": "torch.sym_min(2, L['red'])",
    "(L['x'].size() or 1) * 3 == 1": "L['x'].size() or 1",
    "(L['red'] if L['n'] else 1) * 9 == 1": "L['red'] if L['n'] else 1",
    "L['x'].size()[0].real * 9 == 1": "L['x'].size()[0].real",
    "L['flat_args'][2] * 3 == 1": "L['flat_args'][2]",  # torch replaces it by the third input
    "L['parts'][0] * 3 == 1": "L['parts'][0]",  # torch replaces it by L['parts_0']
}


@pytest.mark.parametrize("guard", NUMBERS)
def test_numbers(guard: str) -> None:
    check_arithmetic(["L['x'] == 3", guard], EXAMPLES, NAMES)


@pytest.mark.parametrize("guard", OTHERS)
def test_what_may_be_a_sequence(guard: str) -> None:
    with pytest.raises(SerializeError) as caught:
        check_arithmetic(["L['x'] == 3", guard], EXAMPLES, NAMES)
    message = str(caught.value)
    assert message.startswith(
        f"guards_code[1]: {guard!r} uses arithmetic on a value that may not be a number"
    )
    assert message.endswith(f": {OTHERS[guard]}")


def test_arguments_without_names() -> None:
    check_arithmetic(["L['arg_1'] * 9 == 1", "L['red'] * 9 == 1"], EXAMPLES, None)
    with pytest.raises(SerializeError, match="arg_2"):
        check_arithmetic(["L['arg_2'] * 9 == 1"], EXAMPLES, [])


@pytest.mark.parametrize("examples", [None, [], [1], (1, 2), {"a": 1}, ((1,), None), ((1, 2), 3)])
def test_examples_that_are_no_arguments(examples: Any) -> None:
    for names in (None, ["q"]):
        check_arithmetic(["L['q'] * 3 == 1"], examples, names)


def test_guards_are_not_compared_with_each_input() -> None:
    examples = ((torch.ones(2), {f"k{i}": i for i in range(6000)}), {})
    guards = [f"L['cfg']['k{i}'] * 2 + L['flat_args'][{i}] == 3" for i in range(3000)]
    start = time.process_time()
    check_arithmetic(guards, examples, ["x", "cfg"])
    assert time.process_time() - start < 2  # a look at each input for each guard: 20 s
    with pytest.raises(SerializeError, match="flat_args"):
        check_arithmetic(guards, ((torch.ones(2), {"k0": 1, "k1": "a"}), {}), ["x", "cfg"])


def test_two_inputs_of_one_name() -> None:
    """Both inputs must be numbers, because torch may use either."""
    check_arithmetic(["L['x'] * 3 == 1"], ((1,), {"x": 2}), ["x"])
    for one, other in ((1, "a"), ("a", 1), (1, [2]), ([2], 1)):
        with pytest.raises(SerializeError, match="may not be a number"):
            check_arithmetic(["L['x'] * 3 == 1"], ((one,), {"x": other}), ["x"])


class Modes(nn.Module):
    def forward(self, x: Tensor, n: int, mode: str) -> Tensor:
        return x * 2 if mode == "double" and x.shape[0] * 2 > n else x


def program() -> ExportedProgram:
    sizes = ({0: Dim("rows", min=3, max=64)}, None, None)
    return export(Modes(), (torch.ones(4, 2), 3, "double"), dynamic_shapes=sizes, strict=False)


def with_guard(guard: str) -> Any:
    artifact = serialize(program())
    stored = json.loads(artifact.exported_program)
    stored["guards_code"].append(guard)
    return replace(artifact, exported_program=json.dumps(stored).encode())


def test_files() -> None:
    inputs = (torch.ones(5, 2), 3, "double")
    again = deserialize(with_guard("L['n'] * 2 < L['x'].size()[0] * 9 ** 3"))
    torch.testing.assert_close(again.module()(*inputs), program().module()(*inputs))
    for guard in (
        "L['mode'] * 9 ** 9 == L['mode']",
        "L['flat_args'][2] * 9 ** 9 == 1",
        "L['x'].shape * 9 ** 9 == L['n']",
        "L['x'].size() * 9 ** 9 == L['x'].size()",
    ):
        with pytest.raises(SerializeError, match="may not be a number"):
            deserialize(with_guard(guard))

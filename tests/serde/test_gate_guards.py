"""The grammar of guards accepts torch's guards, and no other code."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from fxpress import _native
from tests.support.text_kinds import assert_known_kinds


def is_guard(text: str) -> bool:
    return _native.passes_gate("Guard", text)


@pytest.mark.parametrize(
    "text",
    [
        "L['x'].size()[0] == 3",
        "2*L['x'].size()[0] > 1 + L['y'].size()[1]",
        "(L['x'].size()[0] % 4) == 0 and not (L['x'].stride()[1] // 3) != ((-2) + 1) or True",
        "L['flat_args'][0].storage_offset() <= 5",
        "1.5*torch.sym_float(L['n']) > 7.0",
        "torch._sym_sqrt(torch.sym_float(L['a'][1])) > 2.0e-05",
        "max(L['n'], L['x'].size()[0], 1) > min(2, 3) ** 2",
        "(L['n'] & 6) == 2 and (L['n'] | 6) == 2 and (L['n'] ^ 6) == ~2",
        "round(L['n'] / 3, 2) > abs(-1)",
        "math.floor(L['n'] / 2.) < math.inf and -math.inf < 1e400",
        "(L['n'] >> 1) > 1 << 3",
        "L['x']**2 + L['y']**2 < 4",
        "2.0 ** torch.sym_float(L['n']) < 9",
        "L['d']['a b']['ключ'][-1].field.inner.size()[0] == 1",
        "L['mode'] == 'foo (bar)'",
        "L['d']['a\\\\b']['\\n']['\\x00']['\\u2028'] == 1",
        "(1 if L['n'] > 3 else 2) == 1",
        "L['x'] == None",
        "cast_symbool_to_symint_guardless(L['b']) == 1",
        "L['t'].item() >= 2",
        "not not 1 < 2 < 3",
    ],
)
def test_taken(text: str) -> None:
    assert is_guard(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1 == 1",
        "1 ==",
        "f(L['x'])",
        "__import__('os').system('x')",
        "L['x'].__class__",
        "L['x'].not",
        "9 ** L['x'].numel() == 1",
        "L['x'].add_(1) == 1",
        "L['x'].size(0)",
        "L['x'].field.method()",
        "L[0]",
        "L",
        "torch.load('x')",
        "torch.sym_float.__globals__",
        "math.floor.__self__",
        "torch",
        "max",
        "eval('1')",
        "(lambda: 1)()",
        "[1 for a in b]",
        "[1]",
        "{}",
        "(1, 2)",
        "1, 2",
        "(x := 1)",
        "yield",
        "await x",
        "*x",
        "max(*L['x'])",
        "max(key=1)",
        "f'{1}'",
        "b'a' == 1",
        "'a' 'b' == 1",
        "L['x'] == \"it's\"",
        "L['x'] == 'a\"b'",
        "L['x'] == 'a\\'b'",
        "L['x'] == '\\x27'",
        "L['x'] == '\\u0022'",
        "L['x'] == '\\N{QUOTATION MARK}'",
        "L['x'] == '\\42'",
        "L['x'] == 'a\nb'",
        "1 == 1 # comment",
        "1 == 1\n",
        "1 == \\\n1",
        "1; 2",
        "1 == 1, f())",
        "1 == 1) or (1",
        "x == 1",
        "1 @ 2",
        "1 += 2",
        "0x10 == 1",
        "1j",
        "1_000 == 1",
        "012",
        "9**9**9",
        "2 ** 1000",
        "(L['x'] ** 64) ** 64",
        "2 ** (64 * 64)",
        "1 << 1000",
        "1 << (60 << 60)",
        "round(1, -1000000000)",
        "'a' * 1000",
        "('a' if 1 else 'b') * 9",
        "'%99d' % 1",
        "int('9')",
        "9" * 50,
        "(" * 200 + "1" + ")" * 200,
        "-" * 200 + "1",
        "1 if 2 else " * 200 + "3",
        "L['x'" + "][0" * 100000,
        "1" + " + 1" * 100000,
        "1\0",
        "ключ == 1",
        "L['x'] == 1 \u2028",
    ],
    ids=lambda text: text[:20],
)
def test_refused(text: str) -> None:
    assert not is_guard(text)


def _guarded(*conditions: Callable[[Any, Any], Any]) -> nn.Module:
    class Guarded(nn.Module):
        def forward(self, x: Tensor, n: int) -> Tensor:
            for condition in conditions:
                if condition(x, n):
                    x = x + 1
            return x[2:].view(-1, 2)

    return Guarded()


CONDITIONS = (
    lambda x, n: x.shape[0] * 2 > x.shape[1] + 1,
    lambda x, n: x.shape[0] % 4 == 0,
    lambda x, n: x.shape[0] // 3 == 2,
    lambda x, n: x.shape[1] != n + 3,
    lambda x, n: n * 1.5 > 7,
    lambda x, n: math.sqrt(n) > 2,
    lambda x, n: torch.sym_float(n) / 3 > 1,
    lambda x, n: max(n, x.shape[0]) > 9,
    lambda x, n: (n & 6) == 2,
    lambda x, n: round(n / 3) > 1,
    lambda x, n: math.floor(n / 2.0) > 1,
    lambda x, n: n > 3 and x.shape[0] < 77,
    lambda x, n: 2**n > 4096,
    lambda x, n: x.shape[0] ** n > 5,
    lambda x, n: x.shape[0] >> n > 2,
    lambda x, n: 2.0 ** (n / 2) > 5,
    lambda x, n: n**0.5 < n ** (1 / n),
    lambda x, n: 2 ** math.ceil(math.log2(x.shape[0])) < 4096,
)


@pytest.mark.parametrize("strict", [False, True])
def test_what_torch_writes(strict: bool) -> None:
    auto = Dim.AUTO
    program = export(
        _guarded(*CONDITIONS),
        (torch.randn(8, 6), 10),
        dynamic_shapes={"x": {0: auto, 1: auto}, "n": auto},
        strict=strict,
    )
    guards = program._guards_code
    assert len(guards) > 5
    assert [guard for guard in guards if not is_guard(guard)] == []
    assert_known_kinds(program)

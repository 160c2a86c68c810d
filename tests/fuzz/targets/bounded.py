"""Expressions under the default limits: each is built, or refused, in the time that it may take."""

from __future__ import annotations

import contextlib
import re

from fxpress._files.serde import expressions
from fxpress.serialize import SerializeError
from tests.fuzz.hostile.expressions import EXPRESSIONS
from tests.fuzz.targets import timed
from tests.fuzz.targets.mutators import Pool, of_tokens

SEEDS = tuple(text for text in EXPRESSIONS.values() if len(text) < 1000 and text.isprintable())
_WORDS = """
    Add Mul Pow Integer Float Rational Symbol FloorDiv Mod Max Min Piecewise And Or Not
    Xor ITE Eq Ne Lt Ge floor ceiling Abs sqrt exp log sin cos tan acos PowByNatural
    LShift RShift ModularIndexing CleanDiv CeilDiv TruncToInt RoundToInt Where FloatPow
    ToFloat FloatTrueDiv IntTrueDiv PythonMod Identity bitwise_and oo zoo nan pi E I
    true false int_oo s0 s1 u0 + - * / // % ** & | ~ ( ) , 0 1 2 7 -1 1.5 1e9 1e99
"""
_TOKENS = (
    *_WORDS.split(),
    "Symbol('s0', positive=True, integer=True)",
    "Symbol('u0', integer=True)",
    "Integer(9223372036854775807)",
    "Rational(1, 3)",
    "Float('1.0e300', precision=53)",
    "(s0 + s1 + s2 + s3)",
    ", s9" * 20,
    "(s0 + 1) * " * 8 + "1",
)
POOL = Pool(SEEDS)
mutate = of_tokens(_TOKENS, POOL)


def read(data: bytes) -> None:
    """Run one input of the fuzzer."""
    text = data.decode("utf-8", "replace")

    def parse() -> None:
        with contextlib.suppress(SerializeError):
            expressions.parse(text, {})
            POOL.add(text, re.findall(r"\w+\(+\w+|\W+\w\W+", text))

    timed.check(parse, timed.promised(len(data)))


def seeds() -> list[bytes]:
    return [seed.encode("utf-8", "replace") for seed in SEEDS]

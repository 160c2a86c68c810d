"""Writes name_table_cases.inc: what torch.fx.graph._Namespace makes of tricky candidates.

Run it with the torch and the Python (its builtins are the forbidden names) to be matched:

    python tests/cpp/make_name_table_cases.py > tests/cpp/name_table_cases.inc
"""

import builtins
import random
import sys

import torch
from torch.fx.graph import _illegal_names, _Namespace

# Candidates for one namespace; in a pair, together with the object that is being named.
Sequence = list[str | tuple[str, object]]

SEQUENCES: list[Sequence] = [
    # A number is split off only when digits alone follow the last underscore of a longer name.
    ["a_1", "a", "a_01", "a_1", "a_1_2", "a_1_2", "a_1", "a_", "a_", "a1", "a1"],
    ["_1", "_1", "__1", "__1", "___1", "_", "__", "_", "__", "_1_1", "_1_1", "_01"],
    ["1a", "1a", "_1a", "1", "_1", "12_3", "12_3", "_12_3", "0", "0_0", "0_0"],
    # Characters that no identifier has: one underscore a run.
    ["a.b", "a..b", "a_b", "a.b.", ".a", "..", ".", "a b\tc", "a-1", "a-1", "a.1", "a_1"],
    ["", "", "_unnamed", "_unnamed_1", "", " ", ".", "?"],
    ["\x00", '"', "\\", "\n", "a\x00b", "a\nb", "a\n\n"],
    # Names that collide with numbered ones.
    ["a", "a_1", "a", "a_3", "a", "a", "a", "a_3", "a_2"],
    ["a_2", "a", "a", "a", "a_5", "a", "a_3", "a"],
    ["a_1_1", "a_1", "a_1", "a_1_1", "a", "a", "a_1", "a_1_2"],
    ["a_0", "a_0", "a", "a_00", "a_00", "a_0"],
    ["a_9", "a_9", "a_09", "a_09", "a_10", "a_9"],
    ["a_10", "a", "a", "a_5", "a", "a_10", "a"],
    # The count is that of the last name, even when it falls.
    ["a_100", "a_3", "a_3", "a_100", "a"],
    # Keywords, builtins and the names that fx imports always get a number.
    ["max", "max", "max_1", "max", "max_5", "max", "if", "if", "if_", "_if", "print", "print_0"],
    ["max_1", "max", "max_1_1", "max", "Max", "MAX"],
    ["None", "None", "True", "True", "self", "NoneType"],
    ["device", "torch", "torch", "inf", "nan", "fx_pytree", "pytree"],
    ["__debug__", "__name__", "__import__", "__import__", "match", "case", "_", "type", "async"],
    # ... unless the builtin itself is being named; torch remembers its name, the table does not.
    [("max", max), "max", ("min", min), "min", "max_1", ("len", len)],
    ["max", ("max", max), "max"],
    [("sum", max), "sum", ("x", len), ("min_1", min), ("if", abs)],
    # Up to 18 digits.
    ["a_999999999999999998", "a_999999999999999998", "a_000000000000000007", "a"],
    # Around the largest number of 32 bits, too.
    ["a_4294967294", "a_4294967294", "a_4294967295", "a_4294967294", "a_4294967296"],
]

STEMS = ["a", "b", "a_b", "_", "__", "a1", "1", "x.y", "x", "max", "if", "a.", "", "A", "add", "-"]
SUFFIXES = ["", "", "", "_1", "_2", "_3", "_01", "_0", "_1_1", "_1_2", "_", "1", ".1", "_10"]


def random_sequences() -> list[Sequence]:
    rng = random.Random(20)
    result = []
    for _ in range(20):
        stems = rng.sample(STEMS, 3)
        result.append([rng.choice(stems) + rng.choice(SUFFIXES) for _ in range(20)])
    return result


def literal(text: str) -> str:
    escaped = "".join(c if " " <= c <= "~" and c not in '"\\' else f"\\{ord(c):03o}" for c in text)
    # The suffix matters for text that holds a zero byte.
    return f'"{escaped}"sv' if "\x00" in text else f'"{escaped}"'


def lines(items: list[str], indent: str) -> str:
    out = [indent]
    for item in items:
        if len(out[-1]) + len(item) + 2 > 100:
            out.append(indent)
        out[-1] += ("" if out[-1] == indent else " ") + item + ","
    return "\n".join(out)


def case(sequence: Sequence) -> str:
    named = [id(entry[1]) for entry in sequence if isinstance(entry, tuple)]
    assert len(named) == len(set(named)), "an object is named once"
    namespace = _Namespace()
    calls = []
    for entry in sequence:
        candidate, obj = entry if isinstance(entry, tuple) else (entry, None)
        name = namespace.create_name(candidate, obj)
        # Only the object that owns the name may have it.
        exempt = obj is not None and _illegal_names.get(candidate) is obj
        calls.append(f"{{{literal(candidate)}, {literal(name)}{', true' if exempt else ''}}}")
    counts = [f"{{{literal(base)}, {n}}}" for base, n in namespace._base_count.items()]
    indent = " " * 9
    return (
        f"    {{{{\n{lines(calls, indent)}\n     }},\n     {{\n{lines(counts, indent)}\n     }}}},"
    )


def main() -> None:
    # create_name asks whether the owner of the name is `obj`, and None owns "None": without an
    # object to be named, that name is free.
    forbidden = sorted(name for name, owner in _illegal_names.items() if owner is not None)
    assert _illegal_names["max"] is builtins.max
    torch_version = torch.__version__.split("+")[0]
    python_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    print(f"// make_name_table_cases.py, torch {torch_version}, Python {python_version}.")
    print("const std::vector<std::string_view> kForbidden = {")
    print(lines([literal(name) for name in forbidden], "    "))
    print("};\n")
    print("// {{{candidate, name}, or {candidate, name, exempt}}, {{base, count}}}")
    print("const std::vector<Case> kCases = {")
    for sequence in SEQUENCES + random_sequences():
        print(case(sequence))
    print("};")


if __name__ == "__main__":
    main()

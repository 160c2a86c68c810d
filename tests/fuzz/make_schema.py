"""Writes schema.inc: torch's serialization schema, which the fuzzed reader reads by.

python -m tests.fuzz.make_schema > tests/fuzz/schema.inc
"""

from __future__ import annotations

import json

from fxpress._files.serde.schema import TYPES, describe

if __name__ == "__main__":
    for name, is_union, fields in map(describe, TYPES.values()):
        print(f'{{"{name}", {str(is_union).lower()}, {{')
        for field, shape, default in fields:
            required = str(default is None).lower()
            print(f'    {{"{field}", "{shape}", {required}, {json.dumps(default or "")}}},')
        print("}},")

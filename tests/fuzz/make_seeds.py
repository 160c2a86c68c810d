"""Writes the programs that hostile files are made of: those of seed_programs, as this torch saves
them.

    python -m tests.fuzz.make_seeds

Run once for a version of torch; the files are never written again.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import torch

from tests.fuzz.seeds import PATH
from tests.support import seed_programs
from tests.support.records import read_records, write_records


def without_paths(data: bytes) -> bytes:
    """The archive, without the folders of this machine in its stack traces."""
    records = read_records(data)
    for name in [name for name in records if name.endswith(".json")]:
        for folder in (str(Path(__file__).parents[2]), str(Path(torch.__file__).parents[1])):
            records[name] = records[name].replace(f"{folder}/".encode(), b"")
    return write_records(records)


def main() -> None:
    seed_programs.register()
    with zipfile.ZipFile(PATH, "x", zipfile.ZIP_DEFLATED) as seeds:
        for program in seed_programs.PROGRAMS:
            buffer = io.BytesIO()
            torch.export.save(program(), buffer, extra_files={"notes": "n"})
            seeds.writestr(program.__name__, without_paths(buffer.getvalue()))
    print(f"{PATH}: {PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

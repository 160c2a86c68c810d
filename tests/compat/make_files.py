"""Writes the frozen files: every case of torch's exportdb as this torch serializes it.

    python -m tests.compat.make_files

Run once for a version of torch; the files are never written again.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import torch
from torch._export.serde import serialize as torch_serialize
from torch.export import ExportedProgram, export

from tests.support.exported import exportdb_cases

PARTS = ("exported_program", "state_dict", "constants", "example_inputs")
FOLDER = Path(__file__).parent


def add(archive: zipfile.ZipFile, name: str, program: ExportedProgram) -> None:
    written = torch_serialize.serialize(program)
    for part in PARTS:
        archive.writestr(f"{name}/{part}", getattr(written, part))
    args, kwargs = program.example_inputs or ((), {})
    try:
        result = program.module()(*args, **kwargs)
    except Exception:  # a case whose example does not run
        return
    buffer = io.BytesIO()
    torch.save(torch.utils._pytree.tree_leaves(result), buffer)
    archive.writestr(f"{name}/leaves_of_the_result", buffer.getvalue())


def main() -> None:
    version = torch.__version__.partition("+")[0]
    path = FOLDER / f"torch-{version}-exportdb.zip"
    with zipfile.ZipFile(path, "x", zipfile.ZIP_LZMA) as archive:
        for name, case in sorted(exportdb_cases().items()):
            for kind, strict in (("nonstrict", False), ("strict", True)):
                torch.manual_seed(0)
                try:
                    program = export(
                        case.model,
                        case.example_args,
                        case.example_kwargs or {},
                        dynamic_shapes=case.dynamic_shapes,
                        strict=strict,
                    )
                    add(archive, f"{name}/{kind}", program)
                    add(archive, f"{name}/{kind}-decomposed", program.run_decompositions())
                except Exception as error:
                    print(f"{name}, {kind}: left out: {type(error).__name__}")
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

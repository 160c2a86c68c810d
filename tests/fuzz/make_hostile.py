"""Writes the corpus of hostile files: what the generator makes, in one compressed archive.

    python -m tests.fuzz.make_hostile

A file of the corpus stays what it is: others are added.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from tests.fuzz.hostile import CASES

PATH = Path(__file__).parent / "corpus" / "hostile.tar.xz"


def frozen() -> dict[str, bytes]:
    """The files of the corpus, by the names of their cases."""
    with tarfile.open(PATH, "r:xz") as tar:
        return {each.name: tar.extractfile(each).read() for each in tar}  # type: ignore[union-attr]


def main() -> None:
    files = frozen() if PATH.exists() else {}
    with tarfile.open(PATH, "w:xz") as tar:
        for name, case in sorted(CASES.items()):
            content = files[name] if name in files else case.make()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    print(f"{PATH}: {len(CASES)} files, {PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()

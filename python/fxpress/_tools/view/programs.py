"""Programs in memory, as what is shown. Imports torch."""

from __future__ import annotations

from typing import Any

from fxpress._base.arguments import check_program
from fxpress._files.format.fields import parse
from fxpress._files.serde.hashing import hash_parts
from fxpress._files.serde.program import encode
from fxpress._tools.inspect.hashes import split_digests
from fxpress._tools.inspect.program import read_program
from fxpress._tools.inspect.summary import Summary
from fxpress._tools.view.graphs import graphs_of_text
from fxpress._tools.view.sources import Source

_NAME = "model"


def source_of_program(program: Any, name: str) -> Source:
    """Return an ExportedProgram to be viewed.

    Raises:
        TypeError: it is none.
        fxpress.Error: it cannot be serialized.
    """
    check_program(program, "program")
    text, _ = encode(program, None)

    def summary() -> Summary:
        document = parse(text, "the program")
        read = read_program(document, _NAME, "the program", None)
        return Summary(name, 0, "exported program in memory", "", 0, [read], [], {}, {})

    def hashes() -> dict[str, tuple[str, list[bytes]]]:
        _, whole, _, nodes = hash_parts(program, False)
        return {_NAME: (whole.hex(), split_digests(nodes))}

    graphs = graphs_of_text(text, _NAME, "the program")
    return Source(name, {_NAME: graphs}, summary, hashes)

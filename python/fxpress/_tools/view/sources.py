"""Define `Source`, the programs that a view shows: of a file, or one program in memory."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from fxpress._files.archive.files import is_path
from fxpress._files.format.fields import parse
from fxpress._tools.inspect.hashes import hash_nodes, split_digests
from fxpress._tools.inspect.program import read_program
from fxpress._tools.inspect.summary import Summary, summarize
from fxpress._tools.view.graphs import graphs_by_program, graphs_of_text
from fxpress._tools.view.nodes import Graph

_NAME = "model"  # the name of a program in memory


@dataclasses.dataclass
class Source:
    """Programs that are viewed together."""

    name: str  # the name of the file, or of the program
    # Name of a program -> its graph, followed by its operators' bodies.
    graphs: dict[str, list[Graph]]
    summary: Callable[[], Summary]  # returns the summary of the file
    # Returns, for each program, its hash, and a hash for each node of its graph. Raises
    # fxpress.Error if a program cannot be hashed.
    hashes: Callable[[], dict[str, tuple[str, list[bytes]]]]

    def all_graphs(self) -> list[Graph]:
        """Return the graphs of all programs."""
        return [graph for graphs in self.graphs.values() for graph in graphs]


def source_of(program: Any, name: str) -> Source:
    """Return the source of a path or an ExportedProgram; raises the errors of `entry.graphs_of`."""
    if is_path(program):
        return source_of_file(program, name)
    from fxpress._base.arguments import check_program  # these imports import torch
    from fxpress._files.serde.body_constants import lift_body_constants
    from fxpress._files.serde.hashing import hash_parts
    from fxpress._files.serde.program import encode

    check_program(program, "program")
    program = lift_body_constants(program)
    text, _ = encode(program, None)

    def summary() -> Summary:
        document = parse(text, "the program")
        ties = {name: _identity(value) for name, value in program.state_dict.items()}
        read = read_program(document, _NAME, "the program", None, ties)
        return Summary(name, 0, "exported program in memory", "", 0, [read], [], {}, {})

    def hashes() -> dict[str, tuple[str, list[bytes]]]:
        _, whole, _, nodes = hash_parts(program, False)
        return {_NAME: (whole.hex(), split_digests(nodes))}

    return Source(name, {_NAME: graphs_of_text(text, _NAME, "the program")}, summary, hashes)


def source_of_file(path: str | bytes | os.PathLike[str], name: str) -> Source:
    """Return the source of a file; raises the errors of `graphs_by_program`."""
    graphs = graphs_by_program(path)
    return Source(name, graphs, lambda: summarize(path), lambda: hash_nodes(path))


def _identity(value: Any) -> Any:
    """Return a key that is equal for values that are the same tensor."""
    import torch

    if value.layout is not torch.strided:
        return id(value)
    return value.untyped_storage()._cdata, value.storage_offset(), value.dtype, value.shape


def names_of(programs: Sequence[Any]) -> list[str]:
    """Return a name for each path or program, in order; equal names get a number."""
    names = [
        os.path.basename(os.fsdecode(each)) if is_path(each) else "program" for each in programs
    ]
    counts = Counter(names)
    return [f"{i} {name}" if counts[name] > 1 else name for i, name in enumerate(names)]

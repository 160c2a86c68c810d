"""State that nothing in a program uses, which stages have too, so that all of it is in one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping

from torch.export import ExportedProgram
from torch.fx import Node

from fxpress._stages.ends import Ends, state_of
from fxpress._stages.sizes import storage_of


def unused_state(
    program: ExportedProgram, ends: Ends, places: Mapping[Node, int]
) -> Iterator[tuple[Node, int]]:
    """Yield the placeholders of state that has no users, and their places.

    The place is that of the state in front of it, which is of the same module or of one near it.
    Further names of a tensor that is used are left out: they go with the tensor.

    Args:
        program: the program.
        ends: what it takes and gives.
        places: where state is first used: numbers from 0 on.
    """
    unused = [node for node in ends.state if not node.users]
    if not unused:
        return
    values = state_of(program)
    keys = {node: storage_of(values.get(str(spec.target))) for node, spec in ends.state.items()}
    used = {keys[node] for node in ends.state if node.users}
    place = 0
    found: dict[Hashable, int] = {}  # by storage: one that has several names has one place
    for node in ends.state:
        place = places.get(node, place)
        if not node.users and keys[node] not in used:
            yield node, found.setdefault(keys[node], place)

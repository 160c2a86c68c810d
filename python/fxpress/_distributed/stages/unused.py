"""State that nothing in a program uses, which stages have too, so that all of it is in one."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from torch.export import ExportedProgram
from torch.fx import Node

from fxpress._distributed.stages.ends import Ends, state_of
from fxpress._distributed.stages.sizes import storage_of
from fxpress._graphs.partition.callback import SplitCallback


def unused_state(
    program: ExportedProgram, ends: Ends, places: SplitCallback | dict[Node, int]
) -> Iterator[tuple[Node, int]]:
    """Yield the placeholders of state that is neither read nor written, and their places.

    The place is the first that uses the state in front of it, which is of the same module or of one
    near it. Further names of a tensor that is used are left out: they go with the tensor.
    """
    used = {node for node in ends.state if node.users or node in ends.written}
    if len(used) == len(ends.state):
        return
    values = state_of(program)
    keys = {node: storage_of(values.get(str(spec.target))) for node, spec in ends.state.items()}
    known = {keys[node] for node in used}
    place = 0
    found: dict[Hashable, int] = {}  # by storage: one that has several names has one place
    for node in ends.state:
        place = min((places[user] for user in node.users if user in places), default=place)
        if keys[node] not in known:
            yield node, found.setdefault(keys[node], place)

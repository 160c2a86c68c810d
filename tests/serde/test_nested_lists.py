"""Lists of lists as arguments of nodes, of which releases of torch write different ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._export.serde import serialize as torch_serialize

from fxpress._files.serde.operators import empty_list_tag
from fxpress.serialize import SerializeError, deserialize, serialize
from tests.support.reading_cases import top
from tests.support.serialized import with_numbered_graphs
from tests.support.versions import needs


def with_argument(argument: Any) -> Any:
    program = top()
    add = next(n for n in program.graph.nodes if n.target is torch.ops.aten.add.Tensor)
    add.args = (add.args[0], argument)
    return program


VALUES: list[Any] = [
    [[1], [2, 3]],
    [(1,), [2, 3]],
    [(1,), (2, 3)],
    [[], [1]],
    [[]],
    [[1.5], []],
    [[1], [True]],
    [[1], [2.5]],
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_written_as_by_torch(value: Any) -> None:
    program = with_argument(value)
    try:
        theirs = torch_serialize.serialize(program)
    except torch_serialize.SerializeError:
        with pytest.raises(SerializeError, match="Unsupported list/tuple argument type"):
            serialize(program)
    else:
        assert serialize(program).exported_program == with_numbered_graphs(theirs.exported_program)


@needs("lists_of_lists_of_ints")
def test_read_again() -> None:
    written = serialize(with_argument([[1], [2, 3]]))
    values = []
    for read in (deserialize(written), torch_serialize.deserialize(written)):
        add = next(n for n in read.graph.nodes if n.target is torch.ops.aten.add.Tensor)
        values.append(add.args[1])
    assert values[0] == values[1]
    assert repr(values[0]) == repr(values[1])


def types() -> dict[str, Any]:
    of = torch.ListType
    return {
        "ints": of(of(torch.IntType.get())),
        "floats": of(of(torch.FloatType.get())),
        "texts": of(of(torch.StringType.get())),
        "deep": of(of(of(torch.IntType.get()))),
    }


@pytest.mark.parametrize("name", types())
def test_empty_lists(name: str) -> None:
    kind = types()[name]
    serializer = object.__new__(torch_serialize.GraphModuleSerializer)
    outcomes = []
    for write in (empty_list_tag, lambda kind: serializer.serialize_input([], kind).type):
        try:
            outcomes.append((write(kind), ""))
        except torch_serialize.SerializeError as error:
            outcomes.append(("", str(error)))
    assert outcomes[0] == outcomes[1]

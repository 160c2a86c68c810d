"""The comparison that each component makes of a program of the corpus."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch._export.serde import serialize as torch_serialize

import fxpress
from fxpress import SerializeError
from fxpress._distributed.errors import StageError
from fxpress._tools.cli import app
from fxpress._tools.inspect.hashes import UnknownOperatorError, hash_programs
from fxpress.view import graphs_of
from tests.corpus.programs import TRANSFORMERS, Case, Entry
from tests.serde.test_graph_deserializer import assert_graph_read_as_torch
from tests.serde.test_graph_serializer import assert_graph_written_as_torch
from tests.stages.test_save import chained
from tests.support.captured import outcome
from tests.support.decompose_cases import assert_decomposed_as_torch, assert_fresh_as_torch
from tests.support.found import assert_all_are_found, assert_hashed_as_loaded, find_faults
from tests.support.programs import assert_exported_as_torch
from tests.support.serialized import assert_travels_as_torch, both_ways
from tests.support.split_cases import assert_split_as_torch, consecutive, levels
from tests.support.text_kinds import assert_known_kinds
from tests.support.unflatten_cases import assert_unflattens_as_torch
from tests.support.unflatten_compare import assert_runs_as_eager
from tests.support.unlifted import assert_module_as_torch


def split(case: Case) -> None:
    """Cut the graph and its module into blocks and levels; run one of the results."""
    module = case.program.module()
    is_large = case.entry.collection == "transformers"
    for each in (module,) if is_large else (module, case.program.graph_module):
        for size in (23,) if is_large else (1, 3):
            assert_split_as_torch(each, consecutive(each.graph, size).__getitem__)
        kept = {"keep_original_order": True, "keep_original_node_name": True, "tuple_return": True}
        assert_split_as_torch(each, consecutive(each.graph, 2).__getitem__, **kept)
        for seed in (0,) if is_large else (0, 1):
            callback = levels(each.graph, 3, seed).__getitem__
            assert_split_as_torch(each, callback)
            assert_split_as_torch(each, callback, keep_original_order=True)
    if case.eager is None or case.entry.collection not in ("module_db", "transformers"):
        return
    ours = assert_split_as_torch(module, consecutive(module.graph, 2).__getitem__)
    assert ours is not None
    ours.graph.set_codegen(module.graph._codegen)
    ours.recompile()
    expected = _seeded(module, case)
    torch.testing.assert_close(_seeded(ours, case), expected, rtol=0, atol=0, equal_nan=True)


def _seeded(module: Any, case: Case) -> list[Any]:
    torch.manual_seed(0)  # some modules draw numbers
    return pytree.tree_leaves(module(*case.args, **case.kwargs))


def is_stale(case: Case) -> bool:
    """Return whether torch inserts an assertion into the program without recompiling it."""
    return case.entry.name.startswith("while_loop_stack_output")


def exports(case: Case) -> None:
    """Export the model too, or fail as torch does."""
    with fxpress.installed():
        ours = outcome(case.export)
    assert_exported_as_torch(ours, case.result, stale=is_stale(case))


def unflatten(case: Case) -> None:
    # Strict export puts the rotary embeddings of transformers into two groups of nodes, which
    # torch's unflatten takes for two calls of one module: its result does not run.
    tolerant = (case.entry.collection, case.entry.mode) == ("transformers", "strict")
    result = assert_unflattens_as_torch(
        case.program, case.eager, case.args, case.kwargs, tolerant=tolerant
    )
    if case.inputs_of_other_sizes is not None and case.eager is not None:
        assert_runs_as_eager(result.ours, case.eager, *case.inputs_of_other_sizes)


def module(case: Case) -> None:
    ours = assert_module_as_torch(case.program, case.args, case.kwargs)
    if case.inputs_of_other_sizes is not None and case.eager is not None:
        assert_runs_as_eager(ours, case.eager, *case.inputs_of_other_sizes)


def decompose(case: Case) -> None:
    tables: tuple[str, ...] = ("default", "empty")
    if case.entry.mode == "dynamic":  # torch needs several seconds for each: the models take turns
        tables = (tables[TRANSFORMERS.index(case.entry.name) % 2],)
    for table in tables:
        if case.program.range_constraints:
            assert_fresh_as_torch(case.export, table)
        else:
            assert_decomposed_as_torch(case.program, table)


def serialize(case: Case) -> None:
    """Write and read the program, as bytes and in files."""
    both_ways(case.program)


def texts(case: Case) -> None:
    """The program can be loaded, and torch has written no text in an unknown field."""
    try:
        assert_known_kinds(case.program)
    except SerializeError:  # torch does not write the program either
        with pytest.raises(torch_serialize.SerializeError):
            torch_serialize.serialize(case.program)


def decomposed(case: Case) -> None:
    """Write and read the decomposed program, and its module."""
    if case.decomposed is None:
        return
    assert_travels_as_torch(case.decomposed)
    if case.entry.collection in ("exportdb", "transformers") and case.entry.mode == "nonstrict":
        assert_module_as_torch(case.decomposed, case.args, case.kwargs)


def write_graph(case: Case) -> None:
    assert_graph_written_as_torch(case.program)


def read_graph(case: Case) -> None:
    assert_graph_read_as_torch(case.program)


def stages(case: Case) -> None:
    """Wherever two stages can be made, they compute the same."""
    operations = [node for node in case.program.graph.nodes if node.op == "call_function"]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            chained(case.program, case.folder / "stages", 2, by="time")
    except StageError as error:
        refused = str(error)
    else:
        return
    assert len(operations) < 2 or "the program can be cut at" in refused


def verify(case: Case) -> None:
    assert find_faults(case.path) == []


def hashes(case: Case) -> None:
    # The tests define an operator, and transformers one for experts.
    others = {
        "auto_functionalize": "testlib",
        "mixtral": "transformers",
        "qwen3_moe": "transformers",
    }
    names = [library for name, library in others.items() if case.entry.name.startswith(name)]
    if names:
        with pytest.raises(UnknownOperatorError, match=names[0]):
            hash_programs(case.path)
        return
    assert_hashed_as_loaded(case.path)


def diff(case: Case) -> None:
    """`diff` finds no difference between the program and the program loaded from its file."""
    loaded = fxpress.load(case.path)
    assert fxpress.diff(case.program, loaded, include_state=True) == []
    assert fxpress.graph_hash(case.program) == fxpress.graph_hash(loaded)


def inspect(case: Case) -> None:
    assert_all_are_found(case.program, case.path)
    assert app.run(["inspect", str(case.path)]) == 0


def view(case: Case) -> None:
    graph, *_ = graphs_of(case.path)
    calls = [n for n in case.program.graph.nodes if n.op == "call_function"]
    calls = [n for n in calls if n.target is not operator.getitem]
    assert sum(node["id"].startswith("node ") for node in graph["nodes"]) == len(calls)


Component = Callable[[Case], None]
# Each with the programs that it compares: the letters of exportdb, module_db, hop_db and
# transformers, by mode. The exports come first, while the model is as it was, and the stages next:
# torch does not copy the program any more after it has decomposed it.
_APPLIED: dict[Component, dict[str, str]] = {
    exports: {"nonstrict": "emht", "strict": "emht", "dynamic": "mt", "dynamic_strict": "t"},
    stages: {"nonstrict": "et"},
    write_graph: {"nonstrict": "e"},
    read_graph: {"nonstrict": "e"},
    texts: {"nonstrict": "emht", "strict": "emht", "dynamic": "mt"},
    serialize: {"nonstrict": "emht", "strict": "emht", "dynamic": "mt"},
    decomposed: {"nonstrict": "emht", "strict": "e"},
    decompose: {"nonstrict": "emt", "dynamic": "t"},
    verify: {"nonstrict": "emt"},
    hashes: {"nonstrict": "emht", "dynamic": "mt"},
    diff: {"nonstrict": "emht", "dynamic": "mt"},
    inspect: {"nonstrict": "e"},
    view: {"nonstrict": "et"},
    split: {"nonstrict": "emht", "dynamic": "m"},
    module: {"nonstrict": "emht", "strict": "eht", "dynamic": "mt"},
    unflatten: {"nonstrict": "emht", "strict": "emht", "dynamic": "mt"},
}
# In the comparisons of the others, torch decomposes or runs the program.
LEFT_AS_IT_IS = (
    *(exports, write_graph, read_graph, texts, serialize, verify, hashes, diff, inspect, view),
)
_LOADING = (texts, serialize, decomposed, hashes, diff)


def components_of(entry: Entry) -> Iterator[Component]:
    """Yield the components that compare a program, in the order of `_APPLIED`."""
    is_refused = entry.name.startswith("inline_asm_elementwise")  # a file may not call it
    for component, applied in _APPLIED.items():
        if entry.collection[0] in applied.get(entry.mode, "") and not (
            is_refused and component in _LOADING
        ):
            yield component

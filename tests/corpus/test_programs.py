"""Each program of the corpus, exported by torch once, and then compared by every component.

The comparisons of a program follow each other and share its export: workers of xdist begin with
consecutive tests, and only a program whose tests another worker steals is exported twice. None may
change the program, except that torch's decompositions and runs compile bodies again, and that
torch's `unflatten`, which comes last, edits the graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from torch.export import ExportedProgram
from torch.fx import GraphModule

import fxpress
from tests.corpus.components import (
    LEFT_AS_IT_IS,
    Component,
    components_of,
    decompose,
    decomposed,
    exports,
    is_stale,
    serialize,
    split,
    stages,
    unflatten,
    view,
)
from tests.corpus.programs import Case, Entry, entries, exported
from tests.support.sampled import sampled
from tests.support.unflatten_compare import assert_untouched, snapshot

# The programs that an ordinary run has, too.
_ORDINARY = {
    "exportdb-cond_closed_over_variable-nonstrict",
    "exportdb-dynamic_shape_map-nonstrict",
    "exportdb-dynamic_shape_slicing-nonstrict",
    "exportdb-fn_with_kwargs-nonstrict",
    "exportdb-model_attr_mutation-nonstrict",
    "exportdb-tensor_setattr-strict",
    "exportdb-user_input_mutation-nonstrict",
    "hop_db-while_loop_simple-nonstrict",
    "module_db-nn.BatchNorm2d-nonstrict",
    "module_db-nn.GRU-nonstrict",
    "module_db-nn.TransformerEncoderLayer-nonstrict",
}
_SLOW = pytest.mark.slow("each program is exported and compared by torch too")
_SIMPLIFIED = "a load simplifies Min(32, 32*s) to 32, and hashes and differences show it"
# Comparisons that fail, and why.
_WRONG = {
    "module_db-nn.TransformerDecoderLayer-dynamic-serialize": (
        "after a load, ours has the hint of one more multiple of a symbol than torch's"
    ),
    "transformers-gpt2-dynamic-hashes": _SIMPLIFIED,
    **{
        f"transformers-{name}-dynamic-diff": _SIMPLIFIED
        for name in ("gpt2", "mixtral", "qwen3_moe")
    },
}


# Of how many programs of a collection these components compare one, as torch takes long.
_SAMPLES: dict[tuple[str, str, Component], int] = {
    ("module_db", "nonstrict", decompose): 20,
    ("module_db", "nonstrict", decomposed): 36,
    ("module_db", "nonstrict", split): 56,
    ("module_db", "strict", serialize): 36,
    ("transformers", "nonstrict", decomposed): 2,
    ("transformers", "nonstrict", split): 3,
    ("transformers", "dynamic", decompose): 4,
    ("transformers", "dynamic_strict", exports): 5,
    ("transformers", "nonstrict", stages): 2,
    ("transformers", "nonstrict", view): 1,
    ("transformers", "strict", serialize): 1,
    ("transformers", "dynamic", serialize): 3,
}


def _pairs() -> Iterator[Any]:
    samples = {}
    for seed, ((collection, mode, component), count) in enumerate(_SAMPLES.items()):
        of_it = [e for e in entries() if (e.collection, e.mode) == (collection, mode)]
        samples[collection, mode, component] = {*sampled(of_it, count, seed)}
    for entry in entries():
        is_ordinary = str(entry) in _ORDINARY
        for component in components_of(entry):
            sample = samples.get((entry.collection, entry.mode, component), {entry})
            if entry not in sample and not is_ordinary:
                continue
            name = f"{entry}-{component.__name__}"
            marks = [] if is_ordinary and component is not decompose else [_SLOW]
            if name in _WRONG:
                marks.append(pytest.mark.xfail(reason=_WRONG[name], strict=False))
            yield pytest.param(entry, component, id=name, marks=marks)


def facts(program: ExportedProgram) -> list[Any]:
    """Return names, metadata, signature, ranges, state and hash of a program."""
    graphs = [m.graph for m in program.graph_module.modules() if isinstance(m, GraphModule)]
    try:
        computation = fxpress.graph_hash(program, include_state=True)
    except Exception as error:  # torch does not write the program either
        computation = type(error).__name__
    return [
        [str(graph) for graph in graphs],
        [(node.name, list(node.meta)) for graph in graphs for node in graph.nodes],
        repr(program.graph_signature),
        repr(program.range_constraints),
        list(program.state_dict),
        list(program.constants),
        computation,
    ]


_latest: dict[Entry, tuple[int, Case]] = {}  # the case of this worker, and its latest component


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The case, which stays for the comparisons that follow.

    A fixture of the scope "module" would let pytest change the order of the comparisons. A worker
    that steals earlier comparisons after the later ones exports again: the last edits the graph.
    """
    entry = request.param
    place = list(components_of(entry)).index(request.getfixturevalue("component"))
    latest, known = _latest.pop(entry, (-1, None))
    if known is None or place <= latest:
        _latest.clear()
        known = exported(entry, tmp_path_factory.mktemp("corpus"))
    _latest[entry] = place, known
    return known


@pytest.mark.parametrize(("case", "component"), list(_pairs()), indirect=["case"])
def test_program(case: Case, component: Component) -> None:
    if component is exports and isinstance(case.result, Exception):
        exports(case)
        return
    before, text = snapshot(case.program), facts(case.program)
    component(case)
    is_recompiled = component is exports and is_stale(case)
    if component in LEFT_AS_IT_IS and not is_recompiled:
        assert_untouched(case.program, before)
    if component is not unflatten:
        assert facts(case.program) == text

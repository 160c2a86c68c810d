"""Tables of decompositions and the operators that they override."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._export import utils as theirs
from torch._subclasses import fake_impls
from torch.export import default_decompositions, export, exported_program

from fxpress import decompose


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    with torch.library._scoped_library(f"decompose_{uuid.uuid4().hex}", "DEF") as made:
        yield made


def test_composites_as_torch(library: torch.library.Library) -> None:
    for name in ("once", "twice"):
        assert decompose._collect_all_valid_cia_ops() == theirs._collect_all_valid_cia_ops()
        assert (
            decompose._collect_all_valid_cia_ops_for_aten_namespace()
            == theirs._collect_all_valid_cia_ops_for_aten_namespace()
        )
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, lambda x: x * 2, "CompositeImplicitAutograd")
    assert getattr(torch.ops, library.ns).twice.default in decompose._collect_all_valid_cia_ops()


def test_sets_belong_to_the_caller() -> None:
    decompose._collect_all_valid_cia_ops().clear()
    assert decompose._collect_all_valid_cia_ops()


def test_tables_are_divided_as_by_torch() -> None:
    for table in ({}, default_decompositions().materialize()):
        ours = decompose._split_decomp_table_to_cia_and_python_decomp(dict(table))
        expected = exported_program._split_decomp_table_to_cia_and_python_decomp(dict(table))
        assert ours[0] == expected[0]
        assert ours[1] == expected[1]


@pytest.mark.parametrize(
    "key", [torch.ops.aten.relu, "aten::relu", None, torch.relu, 3, torch.ops.higher_order.cond]
)
@pytest.mark.parametrize("kind", [dict, default_decompositions])
def test_keys_that_are_no_operators_are_ignored(key: object, kind: Callable[[], Any]) -> None:
    given = dict(kind())
    tables = []
    for divide in (
        decompose._split_decomp_table_to_cia_and_python_decomp,
        exported_program._split_decomp_table_to_cia_and_python_decomp,
    ):
        tables.append(divide({**given, key: torch.sin}))  # type: ignore[dict-item]
    assert tables[0] == tables[1]
    program = export(nn.ReLU(), (torch.ones(2),))
    made = decompose.run_decompositions(program, {key: torch.sin})
    assert made.graph_module.code == program.run_decompositions({key: torch.sin}).graph_module.code


def test_operators_are_overridden_as_by_torch() -> None:
    operator = torch.ops.aten.linear.default
    before = dict(operator.py_kernels)

    def keys(block: object) -> set[object]:
        with block:  # type: ignore[attr-defined]
            assert operator in fake_impls.op_implementations_dict
            return set(operator.py_kernels)

    table = {operator: theirs._special_op_to_preserve_cia}
    ours = keys(decompose._override_composite_implicit_decomp(table))
    assert operator.py_kernels == before
    assert operator not in fake_impls.op_implementations_dict
    assert ours == keys(exported_program._override_composite_implicit_decomp(table))


def test_operators_are_restored_after_an_error() -> None:
    operator = torch.ops.aten.linear.default
    before = dict(operator.py_kernels)
    table = {operator: theirs._special_op_to_preserve_cia}
    with pytest.raises(KeyError), decompose._override_composite_implicit_decomp(table):
        raise KeyError
    assert operator.py_kernels == before


def test_rules_for_fake_tensors_stay() -> None:
    operator = torch.ops.aten.linear.default
    fake_impls.register_op_impl(operator)(lambda mode, func, *args, **kwargs: NotImplemented)
    rule = fake_impls.op_implementations_dict[operator]
    try:
        table = {operator: theirs._special_op_to_preserve_cia}
        with decompose._override_composite_implicit_decomp(table):
            assert fake_impls.op_implementations_dict[operator] is rule
        assert fake_impls.op_implementations_dict[operator] is rule
        with exported_program._override_composite_implicit_decomp(table):
            pass
        assert operator not in fake_impls.op_implementations_dict  # torch drops it
    finally:
        fake_impls._deregister_op_impl(operator)


_SCOPE = """
import sys, torch
from torch import nn
from fxpress import decompose
first, table = sys.argv[1:]
made = {"torch": lambda p, t: p.run_decompositions(t), "fxpress": decompose.run_decompositions}
program = torch.export.export(nn.GELU(), (torch.ones(2),))

def outcome(run, table):
    try:
        return run(program, {} if table == "empty" else None).graph_module.code
    except Exception as error:
        return repr(error)

if first != "before":
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl("gelu", lambda x, approximate="none": x.sin(), "CompositeImplicitAutograd")
        made[first](program, {})
else:
    made["torch"](program, {})
    library = torch.library.Library("aten", "IMPL")
    library.impl("gelu", lambda x, approximate="none": x.sin(), "CompositeImplicitAutograd")
for _ in range(2):
    results = [outcome(run, table) for run in made.values()]
    assert results[0] == results[1], results
"""


@pytest.mark.slow("a process for each case")
@pytest.mark.parametrize(
    ("first", "table"),
    [("torch", "default"), ("fxpress", "empty"), ("before", "empty")],
)
def test_an_operator_of_atens_was_composite_for_a_while(first: str, table: str) -> None:
    """torch collects the composite operators of aten once for a process."""
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(_SCOPE), first, table]
    subprocess.run(command, check=True, timeout=300)

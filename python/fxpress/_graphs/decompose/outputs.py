"""What torch asks of the tensors that a program with symbols returns."""

from __future__ import annotations

from collections.abc import Iterator

from fxpress._graphs.decompose.plan import Plan
from fxpress._graphs.decompose.symbols import Symbols
from fxpress._graphs.decompose.template import Template, specs_in
from fxpress._graphs.decompose.values import Facts, Storage, UnsafeError, Value
from fxpress._torch import symbols as compat
from fxpress._torch.decompose import pytree


def check_outputs(plan: Plan, symbols: Symbols) -> None:
    """Raise UnsafeError where torch needs a guard to compare what is returned with what it views.

    Releases of torch ask, for a view of a tensor of the program's own, whether it is that tensor as
    a whole. The answer is a guard if it depends on the values of symbols.
    """
    returned = [v for v in pytree.tree_leaves(plan.output) if type(v) is Value]
    wanted = {value.storage for value in returned if value.facts.is_symbolic}
    bases = dict(_bases(plan, wanted)) if wanted else {}
    for value in returned:
        base = bases.get(value.storage)
        if base is not None and not _is_decided(symbols.facts(value.facts), symbols.facts(base)):
            raise UnsafeError("a view is returned, and symbols decide whether it is the whole")


def _bases(plan: Plan, wanted: set[Storage]) -> Iterator[tuple[Storage, Facts]]:
    """Return for storages of the program's own the metadata of the first tensor in each."""
    for stamp in plan.stamps:
        count = len(stamp.template.fresh)
        inputs = len(stamp.storages) - count
        for number, storage in enumerate(stamp.storages[inputs:], inputs):
            if storage in wanted:
                yield storage, _first_in(number, stamp.template)


def _first_in(storage: int, template: Template) -> Facts:
    for node in template.nodes:
        for spec in specs_in(node.value):
            if spec.storage == storage:
                return spec.facts
    raise AssertionError("a storage without a tensor")


def _is_decided(view: Facts, base: Facts) -> bool:
    """Return whether it is known, without a guard, if a view is the whole of its base."""
    for mine, theirs in (
        (view.shape, base.shape),
        (view.strides, base.strides),
        (view.offset, base.offset),
    ):
        equal = compat.known_equality(mine, theirs)
        if equal is not True:
            return equal is False
    return True

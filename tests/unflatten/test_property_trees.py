"""unflatten on generated module trees: as torch where torch is right, and always as eager.

Modules nest, repeat, are shared under several names and share parameters; they have buffers,
persistent or not, written or not, and constants; they take tensors by position and by name, and
return tensors, None and numbers in containers.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import event, given, reject
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from tests.support.generated import examples
from tests.support.unflatten_cases import assert_unflattens_as_torch
from tests.support.unflatten_compare import assert_runs_as_eager

pytestmark = pytest.mark.slow("generated cases")

OPERATIONS = {
    "sin": lambda a, b: a.sin(),
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b.tanh(),
    "size": lambda a, b: a / a.shape[0],
    "chunk": lambda a, b: torch.cat(list(reversed(a.chunk(2, -1))), -1),
    "max": lambda a, b: a.sort(-1)[0],
    "where": lambda a, b: torch.where(a > 0, a, b),
}
OUTPUTS = ("one", "one", "tuple", "dict", "nested", "none", "number", "input")


@dataclass(frozen=True)
class Step:
    """One line of a forward: an operation, a call, or a use of state, on values by position."""

    kind: str
    a: int
    b: int
    detail: int


@dataclass(frozen=True)
class Plan:
    """A module. A child that is a number is a module made before, under another name."""

    steps: tuple[Step, ...]
    children: tuple[Plan | int, ...] = ()
    output: str = "one"
    parameter: bool = False
    tied: bool = False
    buffer: str = ""
    constant: bool = False


@dataclass
class Made:
    """State that the modules of one tree share."""

    tied: nn.Parameter = field(default_factory=lambda: nn.Parameter(torch.full((4,), 0.75)))
    modules: list[nn.Module] = field(default_factory=list)


class Generated(nn.Module):
    def __init__(self, plan: Plan, made: Made) -> None:
        super().__init__()
        self.plan = plan
        index = len(made.modules) + 1
        if plan.parameter:
            self.weight = nn.Parameter(torch.linspace(0.5, 1.0, 4) / index)
        if plan.tied:
            self.tied = made.tied
        if plan.buffer:
            value = torch.linspace(0.0, 1.0, 4) * index
            self.register_buffer("buffer", value, persistent=plan.buffer == "persistent")
        if plan.constant:
            self.constant = torch.linspace(-1.0, 1.0, 4) / index
        for number, child in enumerate(plan.children):
            if isinstance(child, int) and made.modules:
                module = made.modules[child % len(made.modules)]
            elif isinstance(child, int):
                module = nn.Tanh()
            else:
                module = Generated(child, made)
            self.add_module(f"child{number}", module)
        made.modules.append(self)

    def forward(self, x: Tensor, y: Tensor | None = None, *, scale: Tensor | None = None) -> Any:
        values = [v for v in (x, y, scale) if v is not None]
        for step in self.plan.steps:
            values.extend(self.do(step, values))
        last, first = values[-1], values[len(values) // 2]
        return {
            "one": last,
            "tuple": (last, first),
            "dict": {"b": last, "a": first},
            "nested": [last, (None, {"c": first})],
            "none": (last, None),
            "number": {"number": 3, "value": last},
            "input": (x, last),
        }[self.plan.output]

    def do(self, step: Step, values: list[Tensor]) -> list[Tensor]:
        a, b = values[step.a % len(values)], values[step.b % len(values)]
        if step.kind == "call" and self.plan.children:
            child = getattr(self, f"child{step.detail % len(self.plan.children)}")
            if isinstance(child, nn.Tanh) or step.detail % 3 == 0:
                result = child(a)
            elif step.detail % 3 == 1:
                result = child(a, b)
            else:
                result = child(a, scale=b)
            leaves = torch.utils._pytree.tree_leaves(result)
            return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if step.kind == "parameter" and self.plan.parameter:
            return [a * self.weight]
        if step.kind == "tied" and self.plan.tied:
            return [a + self.tied]
        if step.kind == "buffer" and self.plan.buffer:
            return [a + self.buffer]
        if step.kind == "constant" and self.plan.constant:
            return [a * self.constant]
        if step.kind == "write" and self.plan.buffer:
            self.buffer.mul_(0.5).add_(a.detach().mean(0))
            return [a + self.buffer]
        if step.kind == "replace" and self.plan.buffer:
            self.buffer.copy_(a.detach()[0])
            return [b * self.buffer]
        if step.kind == "roll" and self.plan.buffer:
            old = self.buffer
            self.buffer = old * 0.5 + b.detach().mean(0)
            return [a + old.view(2, 2).t().reshape(4)]
        if step.kind == "late" and self.plan.buffer:
            view = self.buffer[None]
            self.buffer = a.detach().mean(0)
            return [b * view]
        names = sorted(OPERATIONS)
        return [OPERATIONS[names[step.detail % len(names)]](a, b)]


KINDS = ["operation"] * 3 + ["parameter", "tied", "buffer", "constant"]
SMALL = st.integers(0, 5)


def steps(kinds: list[str], least: int) -> st.SearchStrategy[tuple[Step, ...]]:
    step = st.builds(Step, st.sampled_from(kinds), SMALL, SMALL, st.integers(0, 11))
    return st.lists(step, min_size=least, max_size=6).map(tuple)


def plans(children: st.SearchStrategy[Any] | None, kinds: list[str]) -> st.SearchStrategy[Plan]:
    if children is not None:
        kinds = ["call"] * len(kinds) + kinds
    return st.builds(
        Plan,
        steps(kinds, 1 if children is None else 3),
        st.just(()) if children is None else st.lists(children, min_size=1, max_size=3).map(tuple),
        st.sampled_from(OUTPUTS),
        st.booleans(),
        st.booleans(),
        st.sampled_from(["", "persistent", "not persistent"]),
        st.booleans(),
    )


def trees(*, writes: bool) -> st.SearchStrategy[Plan]:
    kinds = KINDS + (["write", "replace", "roll", "late"] if writes else [])
    leaf = plans(None, kinds)
    middle = plans(st.one_of(leaf, SMALL), kinds)
    return plans(st.one_of(middle, leaf, SMALL), kinds)


def preservable(model: nn.Module) -> list[str]:
    """Modules whose call signature torch preserves: it loses numbers among the outputs (U-56)."""
    return [
        name
        for name, module in model.named_modules()
        if name and isinstance(module, Generated) and module.plan.output != "number"
    ]


def called(program: Any) -> set[str]:
    stacks = (n.meta.get("nn_module_stack") or {} for n in program.graph.nodes)
    return {path for stack in stacks for path, _ in stack.values()}


def arguments(rows: int, by_name: bool) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    x, y = torch.randn(2, rows, 4, generator=torch.Generator().manual_seed(rows)).unbind()
    return ((x,), {"scale": y}) if by_name else ((x, y), {})


def exported(
    plan: Plan,
    picks: list[int],
    args: Any,
    kwargs: Any,
    *,
    dynamic: bool,
    functional: bool,
    strict: bool,
) -> tuple[nn.Module, ExportedProgram]:
    """The model of a plan, and its program as torch exports it.

    Args:
        picks: which modules keep their signature.
    """
    torch.manual_seed(0)
    model = Generated(plan, Made())
    names = preservable(model)
    preserved = tuple(sorted({names[i % len(names)] for i in picks})) if names else ()
    rows = {0: Dim("rows", min=2, max=64)}
    program = export(
        copy.deepcopy(model),
        args,
        kwargs,
        dynamic_shapes={"x": rows, "scale" if kwargs else "y": rows} if dynamic else None,
        strict=strict,
        preserve_module_call_signature=preserved,
    )
    return model, program.run_decompositions({}) if functional else program


def check(
    plan: Plan,
    picks: list[int],
    *,
    dynamic: bool,
    by_name: bool,
    functional: bool,
    strict: bool = False,
) -> None:
    args, kwargs = arguments(3, by_name)
    try:
        model, program = exported(
            plan, picks, args, kwargs, dynamic=dynamic, functional=functional, strict=strict
        )
        # On copies: it writes buffers. Where a buffer is replaced, torch exports a write, which
        # views of the old one see: that program is another one.
        eager, ran = copy.deepcopy(model), copy.deepcopy(program).module()
        results = [m(*copy.deepcopy(args), **copy.deepcopy(kwargs)) for m in (eager, ran)]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(*(dict(m.named_buffers()) for m in (eager, ran)))
    except Exception:
        reject()  # not exported, or not run, by torch
    writes = any("copy_" in str(n.target) for n in program.graph.nodes) or bool(
        program.graph_signature.buffers_to_mutate
    )
    result = assert_unflattens_as_torch(
        program, model, args, kwargs, gradients=not writes, tolerant=True
    )
    event("torch fails or is wrong" if result.theirs is None else "as torch")
    if dynamic:
        args, kwargs = arguments(7, by_name)
        assert_runs_as_eager(result.ours, model, args, kwargs, gradients=not writes)


OPTIONS = examples(12)
PICKS = st.lists(st.integers(0, 5), max_size=2)


@OPTIONS
@given(trees(writes=False), st.booleans(), st.booleans(), st.booleans())
def test_trees(plan: Plan, dynamic: bool, by_name: bool, functional: bool) -> None:
    check(plan, [], dynamic=dynamic, by_name=by_name, functional=functional)


@examples(2)
@given(trees(writes=False), PICKS, st.booleans())
def test_trees_that_dynamo_has_traced(plan: Plan, picks: list[int], by_name: bool) -> None:
    """Modules under several names keep all of them."""
    check(plan, picks, dynamic=False, by_name=by_name, functional=False, strict=True)


@OPTIONS
@given(trees(writes=True), st.booleans(), st.booleans())
def test_trees_that_write_their_buffers(plan: Plan, by_name: bool, functional: bool) -> None:
    check(plan, [], dynamic=False, by_name=by_name, functional=functional)


@OPTIONS
@given(trees(writes=False), PICKS, st.booleans(), st.booleans(), st.booleans())
def test_trees_with_preserved_signatures(
    plan: Plan, picks: list[int], dynamic: bool, by_name: bool, functional: bool
) -> None:
    check(plan, picks, dynamic=dynamic, by_name=by_name, functional=functional)


@OPTIONS
@given(trees(writes=True), PICKS, st.booleans(), st.booleans())
def test_trees_that_write_with_preserved_signatures(
    plan: Plan, picks: list[int], by_name: bool, functional: bool
) -> None:
    check(plan, picks, dynamic=False, by_name=by_name, functional=functional)

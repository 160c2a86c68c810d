"""Graphs whose parts run Python code at a moment that the test chooses."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram, export
from torch.fx import GraphModule, Node, symbolic_trace

import fxpress
from fxpress import serialize
from fxpress._base.errors import InternalError
from fxpress.split_module import split_module, split_module_simple
from fxpress.unflatten import unflatten


class Struck(Exception):
    """The exception that the code of a part raises."""


class Moment:
    """Run `action` at the `at`-th access, once."""

    def __init__(self, at: int, action: Callable[[], object]) -> None:
        self.left, self.action = at, action
        self.armed = False

    def __call__(self) -> None:
        if not self.armed or self.left < 0:
            return
        self.left -= 1
        if self.left < 0:
            self.action()


class Key(str):
    """A str whose `__hash__` and `__eq__`, which dicts call, run a test's code."""

    moment: Moment | None = None

    def __eq__(self, other: object) -> bool:
        if self.moment is not None:
            self.moment()
        return str.__eq__(self, other)

    def __hash__(self) -> int:
        if self.moment is not None:
            self.moment()
        return str.__hash__(self)


class Meta(dict):  # type: ignore[type-arg]
    """A meta whose `copy` runs a test's code."""

    moment: Moment | None = None

    def copy(self) -> dict[Any, Any]:
        if self.moment is not None:
            self.moment()
        return dict(self)


class Inner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), dim=1) + 1


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        first, second = torch.split(self.inner(y), 1, dim=1)
        return torch.cat([first, second], dim=1) * 2


def arguments() -> tuple[torch.Tensor]:
    return (torch.arange(4.0).reshape(2, 2),)


def traced() -> GraphModule:
    return symbolic_trace(Model())


@functools.cache
def original() -> ExportedProgram:
    torch.manual_seed(0)
    return export(Model(), arguments(), strict=False)


def exported() -> ExportedProgram:
    program = copy.deepcopy(original())
    for node in program.graph.nodes:  # metas in torch's copy share values with the original
        shared = dict(node.meta)
        node.meta = {
            k: copy.copy(v) if isinstance(v, dict | list) else v for k, v in shared.items()
        }
    return program


def by_three(subject: GraphModule) -> Callable[[Node], int]:
    place = {node: i // 3 for i, node in enumerate(subject.graph.nodes)}
    return lambda node: place.get(node, 0)


def run_split(subject: GraphModule) -> object:
    made = split_module(subject, None, by_three(subject))
    assert isinstance(made, GraphModule)
    return made(*arguments())


def run_simple(subject: GraphModule) -> object:
    ask = by_three(subject)
    return split_module_simple(subject, {n: ask(n) for n in subject.graph.nodes})


def run_unflatten(subject: ExportedProgram) -> object:
    return unflatten(subject)(*arguments())


# The operations on a graph: how it is built, and the call.
COMPONENTS: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "split": (traced, run_split),
    "split_simple": (traced, run_simple),
    "unflatten": (exported, run_unflatten),
    "serialize": (exported, lambda program: serialize.serialize(program)),
    "graph_hash": (exported, lambda program: fxpress.graph_hash(program)),
}


def outcome(call: Callable[[Any], object], subject: Any) -> BaseException | None:
    """Return the error of a call; assert that it is not an InternalError or a SystemError."""
    try:
        call(subject)
    except Exception as error:
        said: BaseException | None = error
        while said is not None:
            assert not isinstance(said, InternalError | SystemError), said
            said = said.__cause__ or said.__context__
        return error
    return None

"""Programs whose traces differ between releases of torch."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from fxpress._torch.versions import features
from tests.support.tracking import Tracer
from tests.support.tracking_cases import L1, module, scenario, x


def scaled(m: Any, factor: float, x: torch.Tensor, *, plus: Any = 0) -> torch.Tensor:
    return m.lin(x) * factor + (plus(x) if callable(plus) else plus)


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@scenario
def forward_is_a_partial_of_the_module(t: Tracer) -> None:
    m = L1()
    m.lin = nn.Linear(3, 3)
    m.forward = functools.partial(scaled, m, 2.0)
    compiled = t.call(m, x)
    m.forward = functools.partial(scaled, m, 2.0)  # an equal one
    t.log(compiled(x))
    m.forward = functools.partial(scaled, m, 3.0)
    t.log(compiled(x))


@scenario
def forward_is_a_partial_of_a_partial(t: Tracer) -> None:
    m = L1()
    m.lin = nn.Linear(3, 3)
    inner = functools.partial(scaled, m, 2.0)
    m.forward = functools.partial(inner, plus=twice)
    compiled = t.call(m, x)
    m.forward = functools.partial(inner, plus=torch.sin)
    t.log(compiled(x))


@scenario
def forward_has_a_partial_as_argument(t: Tracer) -> None:
    m = L1()
    m.lin = nn.Linear(3, 3)
    m.forward = functools.partial(scaled, m, 2.0, plus=functools.partial(torch.mul, 2))
    compiled = t.call(m, x)
    m.forward = functools.partial(scaled, m, 2.0, plus=functools.partial(torch.mul, 3))
    t.log(compiled(x))


@scenario
def parameters_listed_after_one_was_assigned(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        self.extra = self.lin.weight
        return x + sum(p.sum() for p in self.parameters())

    t.attempt(lambda: t.call(module(forward, lin=nn.Linear(3, 3)), x))
    t.attempt(lambda: t.call(module(forward, lin=nn.Linear(3, 3)), x, fullgraph=False))


@scenario
def modules_listed_after_one_was_assigned(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        self.extra = self.lin
        return x + len(list(self.modules()))

    t.attempt(lambda: t.call(module(forward, lin=nn.Linear(3, 3)), x, fullgraph=False))


@scenario
def key_in_a_dict_of_modules(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        if "a" in self.d and "b" not in self.d:
            x = x + 1
        return x if self.d.__contains__("a") else x - 1

    t.attempt(lambda: t.call(module(forward, d=nn.ModuleDict({"a": nn.ReLU()})), x))


@scenario
def method_of_a_class_with_the_type_of_the_module(t: Tracer) -> None:
    class Made(nn.Module):
        scale = 3

        @classmethod
        def scaled(cls, x: Any) -> Any:
            return x * cls.scale

        def forward(self, x: Any) -> Any:
            return self.scaled(x) + (self.__class__ is Made)

    t.call(Made(), x)
    t.export(Made(), x)


@scenario
def hooks_read_by_the_program(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        return x + len(self.lin._forward_hooks) + len(list(self.lin._forward_pre_hooks.items()))

    t.call(module(forward, lin=nn.Linear(3, 3)), x)


@scenario
def lazy_module(t: Tracer) -> None:
    t.call(nn.LazyLinear(2), x)


if features.modules_tracked_by_slots:  # older releases fail: see test_lazy_module_exported

    @scenario
    def lazy_module_exported(t: Tracer) -> None:
        t.export(module(lambda self, x: self.lin(x), lin=nn.LazyLinear(4)), x)

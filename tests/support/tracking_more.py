"""More programs that show how Dynamo tracks modules: what a reader found."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from typing import Any

import torch
from torch import nn
from torch.utils.module_tracker import ModuleTracker

from tests.support.tracking import Tracer
from tests.support.tracking_cases import L1, add_one, module, scenario, x


@scenario
def only_its_own_hook(t: Tracer) -> None:
    made = nn.Linear(3, 3)
    made.register_forward_pre_hook(lambda module, args: None)
    t.call(made, x, fullgraph=False)


@scenario
def number_assigned_before_a_child(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        self.n = 1
        return self.lin(x)

    t.call(module(forward, lin=nn.Linear(3, 3)), x)


@scenario
def tables_of_hooks_replaced_inside(t: Tracer) -> None:
    m, tables = nn.ReLU(), nn.modules.module

    def program(x: Any) -> Any:
        y = m(x)
        before = tables._global_forward_hooks
        tables._global_forward_hooks = OrderedDict({1: add_one})
        y = y + m(x)
        tables._global_forward_hooks = before
        return y

    t.log(t.compile(program)(x))


@scenario
def table_of_state_of_another_kind(t: Tracer) -> None:
    made = nn.ReLU()
    made.register_buffer("b", torch.ones(3))
    made.__dict__["_buffers"] = UserDict(made._buffers)

    def program(m: Any, x: Any) -> Any:
        try:
            del m.b
        except AttributeError:
            return x + 100
        return x

    t.attempt(lambda: t.compile(program, fullgraph=False)(made, x))


@scenario
def modules_with_an_argument_exported(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        for each in self.modules(remove_duplicate=True):
            x = each(x) if isinstance(each, nn.Linear) else x
        return x

    t.export(module(forward, lin=nn.Linear(3, 3)), x)


@scenario
def tool_with_hooks_after_the_compilation(t: Tracer) -> None:
    for fullgraph in (True, False):
        made = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        compiled = t.compile(made, fullgraph=fullgraph)
        t.log(compiled(x))
        with ModuleTracker():
            t.log(compiled(x))


@scenario
def regions_compiled_once(t: Tracer) -> None:
    layer = torch.compiler.nested_compile_region(lambda m, x: m(x))
    layers = nn.ModuleList(L1() for _ in range(3))

    def program(x: Any) -> Any:
        for each in layers:
            x = layer(each, x)
        return x

    t.log(t.compile(program)(x))

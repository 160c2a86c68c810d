"""More programs that show how Dynamo tracks modules."""

from __future__ import annotations

import ctypes
import functools
from collections import OrderedDict, UserDict
from operator import methodcaller
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.module_tracker import ModuleTracker

from fxpress._torch.versions import features
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


@scenario
def containers_unpacked_inside(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        first, second = self.ls
        x = second(first(x))
        for layer in [*self.seq, *self.ls]:
            x = layer(x)
        return x + sum((*self.ps, *tuple(self.ps)))

    made = module(
        forward,
        ls=nn.ModuleList([nn.Linear(3, 3), nn.ReLU()]),
        seq=nn.Sequential(nn.Linear(3, 3), nn.ReLU()),
        ps=nn.ParameterList([torch.ones(3)]),
    )
    t.call(made, x)


class Letters(nn.Module):
    def __iter__(self) -> Any:
        return iter("abc")


@scenario
def modules_as_more_arguments(t: Tracer) -> None:
    def counted(*layers: Any) -> int:
        return len(layers)

    def forward(self: Any, x: Any) -> Any:
        return x + counted(*self.ls) + len(set().union(self.letters)) + counted(*self.letters)

    t.attempt(lambda: t.call(module(forward, ls=nn.ModuleList([nn.ReLU()]), letters=Letters()), x))
    t.attempt(lambda: t.call(module(lambda self, x: x + counted(*self)), x))


@scenario
def modules_as_bytes(t: Tracer) -> None:
    """`bytearray` requests the items of a variable without an iterator."""
    numbers = type("Numbers", (nn.Module,), {"__iter__": lambda self: iter((1, 2))})
    for made in (nn.ModuleList([nn.ReLU()]), numbers(), nn.ReLU()):
        t.attempt(lambda made=made: t.log(t.compile(lambda m, x: x + len(bytearray(m)))(made, x)))


@scenario
def call_that_keeps_results(t: Tracer) -> None:
    """The class's `__call__` is not a plain function."""
    made = type("Kept", (L1,), {"__call__": functools.lru_cache(lambda self, x: self.lin(x) * 2)})
    t.attempt(lambda: t.call(made(), x))


class Looks(L1):
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


@scenario
def call_of_the_object(t: Tracer) -> None:
    for base in (L1, Looks):
        for way in ("_call_impl", "__call__"):
            made = type("Own", (base,), {})()
            made.__dict__[way] = lambda x: x * 2
            t.attempt(lambda made=made: t.call(made, x))


class WithStatics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.act = nn.ReLU()

    @staticmethod
    def doubled(x: Any) -> Any:
        return x * 2

    @staticmethod
    def __len__() -> int:  # type: ignore[misc]
        return 3

    @staticmethod
    def __contains__(item: Any) -> bool:  # type: ignore[misc]
        return item == 3


@scenario
def methods_by_name(t: Tracer) -> None:
    made = WithStatics()
    for call in (
        lambda m, x: methodcaller("doubled", x)(m),
        lambda m, x: methodcaller("_call_impl", x)(m.act),
        lambda m, x: methodcaller("__call__", x)(m.act),
        lambda m, x: methodcaller("nope", x)(m),
        lambda m, x: x + len(m) + (3 in m) + (4 in m),
        lambda m, x: x + len(repr(m)),
        lambda m, x: x + len(dir(m)),
        lambda m, x: x + len(m.__dir__()),
        lambda m, x: x + len(m.state_dict()),
    ):
        t.attempt(lambda call=call: t.log(t.compile(call)(made, x)))


@scenario
def methods_by_name_of_modules_made_inside(t: Tracer) -> None:
    for call in (
        lambda x: methodcaller("_call_impl", x)(WithStatics().act),
        lambda x: methodcaller("doubled", x)(WithStatics()),
        lambda x: x + len(WithStatics()),
    ):
        t.attempt(lambda call=call: t.log(t.compile(call)(x)))


def of_instances(function: Any) -> Any:
    """A method like a C++ method: Dynamo calls it by its name."""
    made = ctypes.pythonapi.PyInstanceMethod_New
    made.restype, made.argtypes = ctypes.py_object, [ctypes.py_object]
    return made(function)


@scenario
def methods_of_instances(t: Tracer) -> None:
    for name, function in (
        ("_call_impl", lambda self, x: self.forward(x) * 2),
        ("_wrapped_call_impl", lambda self, x: self.forward(x) * 3),
        ("members", nn.Module.extra_repr),
        ("doubled", lambda self, x: x * 2),
    ):
        made = t.keep(type("Own", (L1,), {name: of_instances(function)})())
        for call in (lambda m, x: x + m(x), lambda m, x, name=name: getattr(m, name)(x)):
            t.attempt(lambda call=call, made=made: t.log(t.compile(call)(made, x)))


@scenario
def way_of_assigning(t: Tracer) -> None:
    def program(m: Any, x: Any) -> Any:
        m.q = m.lin
        return m.lin(x)

    noted: list[str] = []
    for function in (staticmethod(lambda name, value: noted.append(name)), nn.Module.add_module):
        made = t.keep(L1())
        made.__class__ = type("Own", (L1,), {"__setattr__": function})
        t.attempt(lambda made=made: t.log(t.compile(program)(made, x)))
    t.log(noted)


class WithDeleter(L1):
    @property
    def scale(self) -> int:
        return 2

    @scale.deleter
    def scale(self) -> None:
        self.gone = 3


@scenario
def property_deleted_inside(t: Tracer) -> None:
    def program(m: Any, x: Any) -> Any:
        del m.scale
        return x * m.gone

    t.attempt(lambda: t.log(t.compile(program)(WithDeleter(), x)))


class Table(dict[str, Any]):
    """A subclass of dict, which a user has defined, for tables of parameters and buffers."""


@scenario
def table_of_a_class_of_the_user(t: Tracer) -> None:
    for name, kind in (("_parameters", Table), ("_buffers", Table), ("_buffers", UserDict)):
        made = nn.Linear(3, 3)
        made.register_buffer("b", torch.ones(3))
        made.__dict__[name] = kind(getattr(made, name))
        t.attempt(lambda made=made: t.log(t.compile(lambda m, x: x + m.bias + m.b)(made, x)))


@scenario
def table_replaced_inside(t: Tracer) -> None:
    for kind in (dict, Table, UserDict, list):

        def program(m: Any, x: Any, kind: Any = kind) -> Any:
            object.__setattr__(m, "_buffers", kind())
            return x + m.bias + hasattr(m, "b")

        made = nn.Linear(3, 3)
        made.register_buffer("b", torch.ones(3))
        t.attempt(lambda program=program, made=made: t.log(t.compile(program)(made, x)))


@scenario
def lazy_module_changed_before_its_call(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        self.lin.note = 1
        y = self.lin(x)
        self.lin.note = self.lin.note + 1
        return y + self.lin.note + isinstance(self.lin, nn.Linear)

    made = module(forward, lin=nn.LazyLinear(4))
    t.attempt(lambda: t.call(made, x))
    t.log(type(made.lin))


class Pair(NamedTuple):
    first: Any
    second: Any


class LazySum(nn.modules.lazy.LazyModuleMixin, nn.Module):
    cls_to_become = None

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.UninitializedParameter()

    def initialize_parameters(self, parts: Any, *, more: Any = None) -> None:
        if self.has_uninitialized_params():
            first = parts.first if isinstance(parts, Pair) else next(iter(parts))
            self.weight.materialize(first.shape)
            torch.nn.init.ones_(self.weight)

    def forward(self, parts: Any, *, more: Any = None) -> Any:
        return sum(parts) + self.weight + sum(more or ())


@scenario
def lazy_module_with_nested_arguments(t: Tracer) -> None:
    for parts, more in (
        (lambda x: Pair(x, x * 2), lambda x: [x]),
        (lambda x: [x, x], lambda x: (x, 3)),
        (lambda x: (x, 4), lambda x: {"a": x}.values()),
    ):

        def program(m: Any, x: Any, parts: Any = parts, more: Any = more) -> Any:
            return m(parts(x), more=list(more(x)))

        made = t.keep(LazySum())
        t.attempt(lambda program=program, made=made: t.log(t.compile(program)(made, x)))
        t.log(type(made.weight))


if features.modules_tracked_by_slots:  # older releases give lazy modules symbols as sizes

    @scenario
    def lazy_module_of_an_unknown_size(t: Tracer) -> None:
        made = nn.LazyLinear(2)

        def program(x: Any) -> Any:
            rows = x.nonzero()
            return made(rows.float().T)

        with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
            t.attempt(lambda: t.log(t.compile(program)(x)))

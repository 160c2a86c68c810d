"""Programs that show how Dynamo tracks modules: the scenarios of docs/fidelity.md."""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partialmethod
from typing import Any

import torch
from torch import nn

from tests.support.tracking import Program, Tracer

SCENARIOS: dict[str, Program] = {}
x = torch.ones(2, 3)


def scenario(function: Callable[[Tracer], None]) -> Callable[[Tracer], None]:
    SCENARIOS[function.__name__] = function
    return function


class L1(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return self.lin(x)


def module(forward: Callable[..., Any], **members: Any) -> nn.Module:
    """A module of a separate class, with this `forward` and these attributes."""
    made: nn.Module = type("M", (nn.Module,), {"forward": forward})()
    for name, member in members.items():
        setattr(made, name, member)
    return made


def with_hook(made: nn.Module) -> nn.Module:
    made.register_forward_hook(add_one)
    return made


def add_one(module: Any, args: Any, out: Any) -> Any:
    return out + 1


@scenario
def s01_linear(t: Tracer) -> None:
    t.call(L1(), x)


@scenario
def s02_twice(t: Tracer) -> None:
    m = L1()
    t.log(t.compile(lambda *aa: m(*aa) + m(*aa))(x))


@scenario
def s03_two_instances(t: Tracer) -> None:
    made = type("K", (L1,), {"forward": lambda self, x: self.lin(x) * self.k})
    a, b = made(), made()
    a.k = b.k = 2
    compiled = t.compile(lambda m, x: m(x))
    for m, k in ((a, 2), (b, 2), (b, 3), (b, 4)):
        m.k = k
        t.log(compiled(m, x))


@scenario
def s04_missing_attribute(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        try:
            return self.nope
        except AttributeError as error:
            return x + len(str(error))

    t.call(module(forward), x)


@scenario
def s05_class_attributes_first(t: Tracer) -> None:
    m = module(lambda self, x: x * self.w + len(self.z))
    type(m).w, type(m).z = 5, "cls"  # type: ignore[attr-defined]
    m._parameters["w"] = nn.Parameter(torch.ones(3))
    m._modules["z"] = nn.ReLU()
    t.call(m, x)


@scenario
def s07_inherited_getattr(t: Tracer) -> None:
    made = type("G", (L1,), {"__getattr__": lambda self, name: nn.Module.__getattr__(self, name)})
    t.call(made(), x)


@scenario
def s08_getattribute(t: Tracer) -> None:
    class Own(L1):
        def __getattribute__(self, name: str) -> Any:
            return 7 if name == "foo" else super().__getattribute__(name)

        def forward(self, x: Any) -> Any:
            return self.lin(x) + self.foo

    t.call(Own(), x)


@scenario
def s08_getattribute_and_assignment(t: Tracer) -> None:
    class Own(L1):
        def __getattribute__(self, name: str) -> Any:
            return 7 if name == "foo" else super().__getattribute__(name)

        def forward(self, x: Any) -> Any:
            self.kk = 3
            return self.lin(x)

    t.call(Own(), x, fullgraph=False)


@scenario
def s09_property_that_raises(t: Tracer) -> None:
    class Own(nn.Module):
        @property
        def p(self) -> Any:
            raise AttributeError("no")

        def __getattr__(self, name: str) -> Any:
            return 3 if name == "p" else super().__getattr__(name)

        def forward(self, x: Any) -> Any:
            return x + self.p

    t.call(Own(), x)


@scenario
def s10_patched_forward(t: Tracer) -> None:
    m = L1()
    m.forward = lambda z: z * 2  # type: ignore[method-assign]
    compiled = t.call(m, x)
    m.forward = lambda z: z * 3  # type: ignore[method-assign]
    t.log(compiled(x))
    del m.forward
    t.log(compiled(x))


@scenario
def s11_patched_method(t: Tracer) -> None:
    m = L1()
    m.forward = types.MethodType(lambda self, x: self.lin(x) + 1, m)  # type: ignore[method-assign]
    t.call(m, x)


@scenario
def s13_explicit_forward(t: Tracer) -> None:
    t.call(module(lambda self, x: self.lin.forward(x), lin=nn.Linear(3, 3)), x)


@scenario
def s13_explicit_forward_exported(t: Tracer) -> None:
    t.export(module(lambda self, x: self.lin.forward(x), lin=nn.Linear(3, 3)), x)


@scenario
def s14_static_forward(t: Tracer) -> None:
    t.call(type("M", (nn.Module,), {"forward": staticmethod(lambda x: x * 2)})(), x)


@scenario
def s14_partial_forward(t: Tracer) -> None:
    def scaled(self: Any, k: int, x: Any) -> Any:
        return x * k

    t.call(type("M", (nn.Module,), {"forward": partialmethod(scaled, 2)})(), x)


@scenario
def s15_hooks(t: Tracer) -> None:
    m = L1()
    handle = m.lin.register_forward_hook(add_one)
    compiled = t.call(m, x)
    for hooks in ([add_one], [lambda module, args, out: out + 2], [add_one, add_one]):
        handle.remove()
        for hook in hooks:
            handle = m.lin.register_forward_hook(hook)
        t.log(compiled(x))


@scenario
def s16_hook_on_nothing(t: Tracer) -> None:
    for skip in (True, False):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(skip_nnmodule_hook_guards=skip):
            m = L1()
            compiled = t.call(m, x)
            m.lin.register_forward_hook(add_one)
            t.log(compiled(x))


@scenario
def s18_global_hook(t: Tracer) -> None:
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, out: out * 2 if isinstance(module, nn.Linear) else None
    )
    try:
        t.call(L1(), x)
    finally:
        handle.remove()


@scenario
def s19_backward_hook(t: Tracer) -> None:
    m = L1()
    m.lin.register_full_backward_hook(lambda module, inputs, outputs: None)
    t.call(m, x.clone().requires_grad_())


@scenario
def s19_backward_hook_of_compiled_autograd(t: Tracer) -> None:
    m = L1()
    m.lin.register_full_backward_hook(lambda module, inputs, outputs: None)
    with torch._dynamo.config.patch(compiled_autograd=True):
        t.call(m, x.clone().requires_grad_())


@scenario
def s19_old_backward_hook(t: Tracer) -> None:
    m = L1()
    m.lin.register_backward_hook(lambda module, inputs, outputs: None)
    t.call(m, x.clone().requires_grad_())


@scenario
def s20_hook_written_inside(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        self.lin._forward_hooks["a"] = add_one
        return self.lin(x)

    t.call(module(forward, lin=nn.Linear(3, 3)), x)


@scenario
def s21_sequential(t: Tracer) -> None:
    t.call(nn.Sequential(nn.Linear(3, 3), nn.ReLU()), x)
    fn = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    t.export(lambda x: fn(x), x)


def iterated(self: Any, x: Any) -> Any:
    for layer in self.ls:
        x = layer(x)
    return self.ls[-1](x) * len(self.ls)


def three() -> list[nn.Module]:
    return [nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)]


@scenario
def s22_module_list(t: Tracer) -> None:
    t.call(module(iterated, ls=nn.ModuleList(three())), x)
    t.export(module(iterated, ls=nn.ModuleList(three())), x)


@scenario
def s23_slices(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        for layer in self.ls[1:]:
            x = layer(x)
        return x

    t.call(module(forward, ls=nn.ModuleList(three())), x)
    t.export(module(forward, ls=nn.ModuleList(three())), x)


@scenario
def s24_index_out_of_range(t: Tracer) -> None:
    m = module(lambda self, x: self.ls[5](x), ls=nn.ModuleList(three()))
    t.attempt(lambda: t.call(m, x))
    t.attempt(lambda: t.export(m, x))


def of_dict(self: Any, x: Any) -> Any:
    for key in self.d:
        x = self.d[key](x)
    for key, layer in self.d.items():
        x = layer(x) + len(key)
    return x + ("a" in self.d) + len(self.d)


@scenario
def s25_module_dict(t: Tracer) -> None:
    m = module(of_dict, d=nn.ModuleDict({"a": nn.Linear(3, 3), "bb": nn.ReLU()}))
    t.call(m, x)
    t.attempt(lambda: t.export(m, x))
    missing = module(lambda self, x: self.d["zz"](x), d=nn.ModuleDict({"a": nn.ReLU()}))
    t.attempt(lambda: t.call(missing, x))
    t.attempt(lambda: t.export(missing, x))
    plain = module(lambda self, x: next(each(x) for each in self.d.values()), d=m.d)
    t.export(plain, x)


@scenario
def s26_parameter_containers(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        for key in self.p:
            x = x * self.p[key]
        return x + self.l[0] + self.p.get("u")

    m = module(
        forward,
        p=nn.ParameterDict({"u": torch.ones(3), "v": torch.ones(3)}),
        l=nn.ParameterList([torch.ones(3)]),
    )
    t.call(m, x)
    t.attempt(lambda: t.export(m, x))


@scenario
def s27_order_of_parameters(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        for place, (name, value) in enumerate(self.named_parameters()):
            x = x * (place + 1) + value + len(name)
        return x

    m = module(forward, a=nn.Parameter(torch.ones(3)), bb=nn.Parameter(torch.ones(3) * 2))
    compiled = t.call(m, x)
    m._parameters["a"] = m._parameters.pop("a")
    t.log(compiled(x))


@scenario
def s28_changed_state(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        self.c = self.c + 1
        self.b = self.b + 1
        return x + self.c + self.b

    m = module(forward, c=0)
    m.register_buffer("b", torch.zeros(3))
    compiled = t.call(m, x)
    t.log(compiled(x))
    t.log([m.c, m.b])


@scenario
def s29_pending_change(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        self.c = 1
        self.w = self.v
        for value in self.parameters():
            x = x + value
        return x

    m = module(forward, c=0, v=nn.Parameter(torch.ones(3)), w=nn.Parameter(torch.zeros(3)))
    t.call(m, x)


@scenario
def s31_forward_assigned_inside(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        self.lin.forward = lambda z: z * 3
        return self.lin(x)

    t.call(module(forward, lin=nn.Linear(3, 3)), x)


@scenario
def s32_made_inside(t: Tracer) -> None:
    class My(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", torch.ones(3))

        def forward(self, x: Any) -> Any:
            return x + self.b

    t.log(t.compile(lambda x: My()(x))(x))
    t.attempt(lambda: t.compile(lambda x: nn.Linear(3, 3)(x))(x))


@scenario
def s33_lazy(t: Tracer) -> None:
    m = module(lambda self, x: self.lin(x), lin=nn.LazyLinear(4))
    compiled = t.call(m, x)
    t.log(compiled(x))
    t.log(type(m.lin))


@scenario
def s33_lazy_that_fails(t: Tracer) -> None:
    made = nn.LazyLinear(4)

    def fails(*args: Any, **kwargs: Any) -> None:
        raise AttributeError("inner")

    made.initialize_parameters = fails  # type: ignore[method-assign]

    def fn(x: Any) -> Any:
        try:
            return made(x)
        except AttributeError as error:
            return x + len(str(error))

    t.log(t.compile(fn)(x))


@scenario
def s34_shared_child(t: Tracer) -> None:
    def nested(self: Any, x: Any) -> Any:
        return self.b(self.a(x))

    def steps(self: Any, x: Any) -> Any:
        y = self.a(x)
        return self.b(y)

    for forward in (nested, steps):
        lin = nn.Linear(3, 3)
        t.call(module(forward, a=lin, b=lin), x)


@scenario
def s35_cond(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        x = self.a(x)
        x = torch.cond(x.sum() > 0, lambda x: self.a(x), lambda x: self.a(x) + 1, (x,))
        return self.a(x)

    t.call(module(forward, a=nn.Linear(3, 3)), x)
    t.export(module(forward, a=nn.Linear(3, 3)), x)


@scenario
def s36_graph_module_with_hook(t: Tracer) -> None:
    g = torch.fx.symbolic_trace(L1())
    m = module(lambda self, x: self.g(x), g=with_hook(g))
    t.call(m, x)
    t.export(m, x)


@scenario
def s37_modules_that_are_refused(t: Tracer) -> None:
    children = (
        torch.jit.script(nn.ReLU()),
        nn.GRU(3, 3),
        type("Empty", (nn.Module,), {"__init__": lambda self: None, "forward": add_one})(),
        torch.compile(torch.compiler.disable(nn.Linear(3, 3))),
    )
    for child in children:
        t.attempt(lambda child=child: t.compile(lambda x: child(x))(x))


@scenario
def s38_fsdp_flags(t: Tracer) -> None:
    made = type("K", (L1,), {"forward": lambda self, x: self.lin(x) * self.k})
    m = made()
    m._is_fsdp_managed_module = True
    m.k = 1
    t.attempt(lambda: t.call(m, x))
    m._fsdp_use_orig_params = True
    for skip in (True, False):
        with torch._dynamo.config.patch(skip_fsdp_guards=skip):
            compiled = t.call(m, x)
            for k in (1, 2, 3, 4):
                m.k = k
                t.log(compiled(x))


def forced(m: nn.Module) -> nn.Module:
    for each in m.modules():
        each.torchdynamo_force_dynamic = False
    return m


@scenario
def s39_not_dynamic(t: Tracer) -> None:
    t.call(forced(L1()), x)


@scenario
def s39_not_dynamic_and_assigned(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        self.q = 1
        return self.lin(x)

    t.call(forced(module(forward, lin=nn.Linear(3, 3))), x)


@scenario
def s40_restart(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        self.q = 1
        return x * 2

    child = module(forward)
    t.export(module(lambda self, x: self.c(x), c=child), x)
    t.export(module(lambda self, x: self.c(x), c=type(child)()), x)


@scenario
def s41_class_members_exported(t: Tracer) -> None:
    m = module(lambda self, x: x * self.w)
    type(m).w = 5  # type: ignore[attr-defined]
    m._parameters["w"] = nn.Parameter(torch.ones(3) * 2)
    t.export(m, x)
    other = module(lambda self, x: x * self.cfg["a"])
    type(other).cfg = {"a": 2}  # type: ignore[attr-defined]
    t.attempt(lambda: t.export(other, x))
    t.call(other, x)


@scenario
def s42_strict_export(t: Tracer) -> None:
    program = torch.export.export(nn.Sequential(L1(), nn.ReLU()), (x,), strict=True)
    t.seen.graphs.append(t.seen.graph(program.graph_module))


@scenario
def s43_captured_graph_compiled(t: Tracer) -> None:
    from torch.utils.checkpoint import checkpoint

    m = L1()
    fn = lambda x: checkpoint(m, x, use_reentrant=False)  # noqa: E731
    captured = torch._dynamo.export(fn)(x).graph_module
    t.call(captured, x)


@scenario
def s44_hasattr(t: Tracer) -> None:
    def forward(self: Any, x: Any) -> Any:
        return x * 2 if hasattr(self, "q") else x * 3

    m = module(forward)
    compiled = t.call(m, x)
    m.q = 1
    t.log(compiled(x))
    t.export(m, x)


@scenario
def s45_appended(t: Tracer) -> None:
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = t.call(m, x)
    m.append(nn.Linear(3, 3))
    t.log(compiled(x))
    stale = forced(nn.Sequential(nn.ReLU()))
    compiled = t.call(stale, x)
    stale.append(nn.Tanh())
    t.log(compiled(x))

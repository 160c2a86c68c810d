"""Programs with modules in the graph (legacy export): their members, items and methods."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fxpress._torch.versions import features
from tests.support.tracking import Tracer
from tests.support.tracking_cases import SCENARIOS, forced, module, three, x

Forward = Callable[[Any, Any], Any]
Members = Callable[[], dict[str, Any]]


def of_a_module(made: Callable[[Forward], nn.Module]) -> Callable[[Forward], Forward]:
    """Add a program that compiles and exports a module with this `forward`."""

    def add(forward: Forward) -> Forward:
        def program(t: Tracer) -> None:
            t.attempt(lambda: t.call(forced(made(forward)), x))
            t.attempt(lambda: t.export(made(forward), x))

        SCENARIOS["one_by_one_" + forward.__name__] = program
        return forward

    return add


def own(**members: Any) -> Callable[[Forward], Forward]:
    """Add a program for a module of a new class; `members` are functions that create members."""
    return of_a_module(
        lambda forward: module(forward, **{name: make() for name, make in members.items()})
    )


def state(forward: Forward) -> nn.Module:
    made = module(forward, lin=nn.Linear(3, 3), act=nn.ReLU(), w=nn.Parameter(torch.ones(3)))
    made.register_buffer("b", torch.ones(3) * 2)
    made.register_buffer("same", made.b)
    made.inner = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    return made


def modules() -> nn.Module:
    return nn.ModuleDict({"a": nn.Linear(3, 3), "bb": nn.ReLU()})


def parameters() -> nn.Module:
    return nn.ParameterDict(
        {"a": nn.Parameter(torch.ones(3)), "bb": nn.Parameter(torch.ones(3) * 2)}
    )


def layers() -> nn.Module:
    return nn.ModuleList(three())


def applied(layers: Any, x: Any) -> Any:
    for layer in layers:
        x = layer(x)
    return x


def weighted(pairs: Any, x: Any) -> Any:
    """A result that depends on the names, values and order of tensors."""
    for place, (name, value) in enumerate(pairs):
        x = x * (place + 1) + value.sum() + len(name)
    return x


def named(pairs: Any, x: Any) -> Any:
    """A result that depends on the names, types and order of modules."""
    for place, (name, each) in enumerate(pairs):
        x = x * (place + 1) + len(name) + 100 * isinstance(each, nn.Linear)
    return x


# Lists of members


@of_a_module(state)
def named_children(self: Any, x: Any) -> Any:
    return applied([child for _, child in self.named_children()], named(self.named_children(), x))


@of_a_module(state)
def named_children_of_something(self: Any, x: Any) -> Any:
    return named(self.named_children("a"), x)


@of_a_module(state)
def children(self: Any, x: Any) -> Any:
    return applied(self.children(), x)


@of_a_module(state)
def children_of_something(self: Any, x: Any) -> Any:
    return applied(self.children(recurse=True), x)


@of_a_module(state)
def named_modules(self: Any, x: Any) -> Any:
    return named(self.named_modules(), x)


@of_a_module(state)
def named_modules_below_a_prefix(self: Any, x: Any) -> Any:
    return named(self.inner.named_modules(None, "inner", remove_duplicate=False), x)


@of_a_module(state)
def every_module(self: Any, x: Any) -> Any:
    return x + sum(isinstance(each, nn.Linear) for each in self.modules())


@of_a_module(state)
def named_parameters(self: Any, x: Any) -> Any:
    return weighted(self.named_parameters(), x)


@of_a_module(state)
def named_parameters_of_its_own(self: Any, x: Any) -> Any:
    return weighted(self.named_parameters("all", recurse=False), x)


@of_a_module(state)
def named_parameters_not_of_its_children(self: Any, x: Any) -> Any:
    return weighted(self.named_parameters(recurse=False), x)


@of_a_module(state)
def named_parameters_below_a_tensor(self: Any, x: Any) -> Any:
    return weighted(self.named_parameters(x), x)


@of_a_module(state)
def named_parameters_with_too_much(self: Any, x: Any) -> Any:
    return weighted(self.named_parameters("", True, True, True), x)


@of_a_module(state)
def every_parameter(self: Any, x: Any) -> Any:
    return x + sum(value.sum() for value in self.parameters())


@of_a_module(state)
def parameters_of_its_own(self: Any, x: Any) -> Any:
    return x + sum(value.sum() for value in self.parameters(False))


@of_a_module(state)
def named_buffers(self: Any, x: Any) -> Any:
    return weighted(self.named_buffers(), x)


@of_a_module(state)
def named_buffers_twice(self: Any, x: Any) -> Any:
    return weighted(self.named_buffers(remove_duplicate=False), x)


@of_a_module(state)
def every_buffer(self: Any, x: Any) -> Any:
    return x + sum(value.sum() for value in self.buffers(recurse=True))


# Dicts


@own(d=modules)
def items_of_a_dict(self: Any, x: Any) -> Any:
    return applied([each for _, each in self.d.items()], named(self.d.items(), x))


@own(d=modules)
def items_of_something(self: Any, x: Any) -> Any:
    return named(self.d.items("a"), x)


@own(d=modules)
def keys_of_a_dict(self: Any, x: Any) -> Any:
    return x + len("".join(self.d.keys())) + len("-".join(self.d))


@own(d=modules)
def keys_of_something(self: Any, x: Any) -> Any:
    return x + len(list(self.d.keys(1)))


@own(d=modules)
def values_of_a_dict(self: Any, x: Any) -> Any:
    return applied(self.d.values(), x)


@own(d=modules)
def values_of_something(self: Any, x: Any) -> Any:
    return applied(self.d.values(1, 2, what=3), x)


@own(d=modules)
def iteration_of_a_dict(self: Any, x: Any) -> Any:
    for key in self.d.__iter__():
        x = self.d[key](x)
    return x + len([*self.d]) + len(list(iter(self.d)))


@own(d=modules)
def keys_in_a_dict(self: Any, x: Any) -> Any:
    return x + ("a" in self.d) + 2 * ("c" in self.d) + 4 * ("a" not in self.d)


@own(d=modules)
def tensor_in_a_dict(self: Any, x: Any) -> Any:
    return x + (x in self.d)


@own(d=modules)
def missing_key(self: Any, x: Any) -> Any:
    return self.d["c"](x)


@own(d=parameters)
def dict_of_parameters(self: Any, x: Any) -> Any:
    return weighted(self.d.items(), x) + len(self.d) + len("".join(self.d.keys()))


@own(d=parameters)
def iteration_of_a_dict_of_parameters(self: Any, x: Any) -> Any:
    for key in self.d:
        x = x * self.d[key]
    return x


@own(d=parameters)
def values_of_a_dict_of_parameters(self: Any, x: Any) -> Any:
    return x + sum(self.d.values())


if features.containers_have_slots:  # older releases look among the submodules

    @own(d=parameters)
    def keys_in_a_dict_of_parameters(self: Any, x: Any) -> Any:
        return x + ("a" in self.d) + 2 * ("c" in self.d)


# Lists


@own(ls=layers)
def unpacked_list(self: Any, x: Any) -> Any:
    first, *rest = self.ls
    return applied(rest, first(x)) + len(tuple(self.ls))


@own(ls=layers)
def iterator_of_a_list(self: Any, x: Any) -> Any:
    return applied(self.ls.__iter__(), next(iter(self.ls))(x))


@own(ls=layers)
def places_from_the_end(self: Any, x: Any) -> Any:
    return self.ls[-1](self.ls[True](self.ls[-3](x)))


@own(ls=lambda: nn.Sequential(*three()))
def places_of_a_sequential(self: Any, x: Any) -> Any:
    return self.ls[-1](self.ls[1](x))


@own(ls=layers)
def reversed_slice(self: Any, x: Any) -> Any:
    return applied(self.ls[::-1], x)


@own(ls=lambda: nn.Sequential(*three()))
def slice_of_a_sequential(self: Any, x: Any) -> Any:
    return self.ls[1:](x) + len(self.ls[:2])


@own(ls=layers)
def place_by_a_tensor(self: Any, x: Any) -> Any:
    return self.ls[x](x)


@own(ls=layers)
def place_by_a_list(self: Any, x: Any) -> Any:
    return self.ls[[x]](x)


@own(ls=lambda: nn.ParameterList([torch.ones(3), torch.ones(3) * 2]))
def list_of_parameters(self: Any, x: Any) -> Any:
    for value in self.ls:
        x = x * value
    return x + self.ls[-1] + len(self.ls)


@own(ls=layers)
def module_in_a_list(self: Any, x: Any) -> Any:
    return x + (self.ls[0] in self.ls)


@own(lin=lambda: nn.Linear(3, 3))
def iteration_of_what_is_no_container(self: Any, x: Any) -> Any:
    return applied(self.lin, x)


@own(lin=lambda: nn.Linear(3, 3))
def length_of_what_is_no_container(self: Any, x: Any) -> Any:
    return x + len(self.lin)


def _place_by_size(t: Tracer) -> None:
    """The size is a symbol of the graph."""

    def forward(self: Any, x: Any) -> Any:
        return self.ls[x.shape[0] - 2](x)

    given = torch.ones(3, 3)
    compiled = t.compile(forced(module(forward, ls=layers())), dynamic=True)
    t.log(compiled(given))
    t.log(compiled(torch.ones(4, 3)))
    t.export(module(forward, ls=layers()), given, tracing_mode="symbolic")


SCENARIOS["one_by_one_place_by_size"] = _place_by_size


# Own items


class Chosen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.ReLU()

    def __getitem__(self, key: Any) -> Any:
        return self.a if key in ("a", 0) else self.b

    def __len__(self) -> int:
        return 0

    def __contains__(self, key: Any) -> bool:
        return key == "a"


@own(c=Chosen)
def own_containment(self: Any, x: Any) -> Any:
    return x + ("a" in self.c)


@own(c=Chosen)
def own_items(self: Any, x: Any) -> Any:
    return self.c["b"](self.c[0](x))


@own(c=Chosen)
def own_items_by_slices(self: Any, x: Any) -> Any:
    return self.c[1:](x)


@own(c=Chosen)
def own_items_by_tensors(self: Any, x: Any) -> Any:
    return self.c[x](x)


class Replaced(Chosen):
    """The attribute in the object's dict is not a function."""

    def __init__(self, items: Any) -> None:
        super().__init__()
        self.__dict__["__getitem__"] = items


@own(c=lambda: Replaced(functools.partial(max, 1)))
def items_by_a_partial(self: Any, x: Any) -> Any:
    return self.c[0](x)


@own(c=lambda: Replaced(types.MethodType(max, 1)))
def items_by_a_function_of_python(self: Any, x: Any) -> Any:
    return self.c[0](x)


# Truth, identity and attributes


class Untrue(nn.Module):
    def __bool__(self) -> bool:
        return False


@own(c=Untrue)
def own_truth(self: Any, x: Any) -> Any:
    return x + 1 if self.c else x - bool(self.c)


@own(c=Chosen, ls=layers, d=nn.ModuleDict, lin=lambda: nn.Linear(3, 3))
def truth(self: Any, x: Any) -> Any:
    for place, each in enumerate((self.c, self.ls, self.d, self.lin)):
        if each:
            x = x + 10**place
        if not each:
            x = x - 10**place
    return x + bool(self.c) + 2 * bool(self.ls)


@own(ls=layers)
def representation(self: Any, x: Any) -> Any:
    return x + len(repr(self.ls)) + len(str(self.ls[0])) + len(f"{self.ls[1]}")


@own(lin=lambda: nn.Linear(3, 3), act=nn.ReLU)
def identity(self: Any, x: Any) -> Any:
    same = self.lin is self.lin
    other = self.lin is self.act
    return x + same + 2 * other + 4 * (id(self.lin) == id(self.lin))


@own(lin=lambda: nn.Linear(3, 3))
def equality(self: Any, x: Any) -> Any:
    return x + (self.lin == self.lin)


@own(lin=lambda: nn.Linear(3, 3), act=nn.ReLU)
def keys_of_a_plain_dict(self: Any, x: Any) -> Any:
    scales = {self.lin: 2, self.act: 3}
    return x * scales[self.lin] + len({self.lin, self.lin})


@own(lin=lambda: nn.Linear(3, 3), q=lambda: 3)
def its_namespace(self: Any, x: Any) -> Any:
    return x * self.__dict__["q"] + ("q" in self.__dict__) + 2 * ("nope" in vars(self))


@own(lin=lambda: nn.Linear(3, 3))
def its_class(self: Any, x: Any) -> Any:
    is_linear = self.lin.__class__ is nn.Linear
    return x + is_linear + isinstance(self.lin, nn.Module) + 2 * (type(self.lin) is nn.ReLU)


@own(lin=lambda: nn.Linear(3, 3))
def attributes_that_exist_or_not(self: Any, x: Any) -> Any:
    return x + hasattr(self.lin, "weight") + 2 * hasattr(self.lin, "nope") + hasattr(self, "lin")


@own(lin=lambda: nn.Linear(3, 3))
def attribute_that_is_missing(self: Any, x: Any) -> Any:
    try:
        return x + self.lin.nope
    except AttributeError:
        return x - 1


@own(lin=lambda: nn.Linear(3, 3))
def attribute_that_is_missing_altogether(self: Any, x: Any) -> Any:
    return x + self.nope + getattr(self, "other", 3)


@own(lin=lambda: nn.Linear(3, 3))
def attribute_with_a_default(self: Any, x: Any) -> Any:
    return x + getattr(self, "other", 3) + getattr(self.lin, "in_features", 4)


class Passes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layer: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return None, grad * 2


@own(lin=lambda: nn.Linear(3, 3), fixed=lambda: nn.Linear(3, 3).eval())
def argument_of_a_function_with_gradients(self: Any, x: Any) -> Any:
    return Passes.apply(self.fixed, x) + Passes.apply(self.lin, x)

"""Programs with modules in the graph (legacy export): members of their classes, and calls."""

from __future__ import annotations

import functools
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import torch
from torch import nn

from fxpress._torch.versions import features
from tests.support.tracking_cases import L1, three, with_hook, x
from tests.support.tracking_specialized import Forward, layers, of_a_module, own

# Members of classes


class Members(nn.Module):
    number = 3
    text = "text"
    weight = torch.ones(3)
    things = [1, 2]  # noqa: RUF012
    nothing = None

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)

    @property
    def scale(self) -> int:
        return self.number + len(self.text)

    @property
    def raises(self) -> int:
        raise ValueError("no")

    @classmethod
    def made(cls, x: Any) -> Any:
        return x * cls.number

    @staticmethod
    def alone(x: Any) -> Any:
        return x - 1

    def method(self, x: Any, times: int = 2) -> Any:
        return self.lin(x) * times

    @torch._dynamo.assume_constant_result
    def constant(self, by: int) -> int:
        return self.number * by

    @torch.compile
    def compiled(self, x: Any) -> Any:
        return self.lin(x)


def _of_members(forward: Forward) -> nn.Module:
    return type("Own", (Members,), {"forward": forward})()  # type: ignore[no-any-return]


@of_a_module(_of_members)
def constants_of_a_class(self: Any, x: Any) -> Any:
    return x * self.number + len(self.text) + self.weight + (self.nothing is None)


@of_a_module(_of_members)
def list_of_a_class(self: Any, x: Any) -> Any:
    return x * self.things[1]


@of_a_module(_of_members)
def property_of_a_class(self: Any, x: Any) -> Any:
    return x * self.scale


@of_a_module(_of_members)
def property_that_raises(self: Any, x: Any) -> Any:
    try:
        return x * self.raises
    except ValueError:
        return x * 5


@of_a_module(_of_members)
def method_of_a_class(self: Any, x: Any) -> Any:
    return self.made(x) + self.__class__.made(x)


@of_a_module(_of_members)
def static_method(self: Any, x: Any) -> Any:
    return self.alone(x)


@of_a_module(_of_members)
def method(self: Any, x: Any) -> Any:
    call = self.method
    return call(x, times=3) + self.method(x)


@of_a_module(_of_members)
def method_with_a_constant_result(self: Any, x: Any) -> Any:
    return x * self.constant(2)


@of_a_module(_of_members)
def constant_result_of_a_tensor(self: Any, x: Any) -> Any:
    return x * self.constant(x)


@of_a_module(_of_members)
def compiled_method(self: Any, x: Any) -> Any:
    return self.compiled(x)


def _with(**functions: Any) -> Callable[[Forward], nn.Module]:
    def made(forward: Forward) -> nn.Module:
        return type("Own", (L1,), {"forward": forward, **functions})()  # type: ignore[no-any-return]

    return made


def missing_is_seven(self: Any, name: str) -> Any:
    if name == "foo":
        return 7
    return nn.Module.__getattr__(self, name)


def foo_is_seven(self: Any, name: str) -> Any:
    return 7 if name == "foo" else nn.Module.__getattribute__(self, name)


def foo_breaks(self: Any, name: str) -> Any:
    if name == "foo":
        torch._dynamo.graph_break()
        return 7
    return nn.Module.__getattribute__(self, name)


def bar_is_missing(self: Any, name: str) -> Any:
    if name == "bar":
        raise AttributeError(name)
    return nn.Module.__getattribute__(self, name)


def bar_is_eight(self: Any, name: str) -> Any:
    return 8 if name == "bar" else nn.Module.__getattr__(self, name)


class Looks:
    """A callable object, which is not a function, in place of `__getattr__`."""

    def __call__(self, name: str) -> Any:
        if name == "foo":
            return 7
        raise AttributeError(name)


@of_a_module(_with(__getattr__=missing_is_seven))
def own_getattr(self: Any, x: Any) -> Any:
    return self.lin(x) + self.foo


@of_a_module(_with(__getattr__=missing_is_seven))
def own_getattr_that_raises(self: Any, x: Any) -> Any:
    try:
        return self.lin(x) + self.bar
    except AttributeError:
        return x


@of_a_module(_with(__getattr__=Looks()))
def getattr_that_is_no_function(self: Any, x: Any) -> Any:
    return self._modules["lin"](x) + self.foo


@of_a_module(_with(__getattribute__=foo_is_seven))
def own_getattribute(self: Any, x: Any) -> Any:
    return self.lin(x) + self.foo


@of_a_module(_with(__getattribute__=bar_is_missing))
def own_getattribute_that_raises(self: Any, x: Any) -> Any:
    try:
        return self.lin(x) + self.bar
    except AttributeError:
        return x


@of_a_module(_with(__getattribute__=bar_is_missing, __getattr__=bar_is_eight))
def getattr_after_getattribute(self: Any, x: Any) -> Any:
    return x + self.bar


@of_a_module(_with(__getattribute__=foo_breaks))
def getattribute_that_cannot_be_traced(self: Any, x: Any) -> Any:
    return self.lin(x) + self.foo


# Calls


@own(lin=lambda: with_hook(nn.Linear(3, 3)))
def hook_of_a_module_of_torch(self: Any, x: Any) -> Any:
    return self.lin(x)


@own(seq=lambda: with_hook(nn.Sequential(*three())))
def hook_of_a_sequential(self: Any, x: Any) -> Any:
    return self.seq(x)


@own(seq=lambda: nn.Sequential(*three()))
def sequential_by_keyword(self: Any, x: Any) -> Any:
    return self.seq(input=x)


@own(seq=nn.Sequential)
def empty_sequential(self: Any, x: Any) -> Any:
    return self.seq(x)


class LazySequential(nn.modules.lazy.LazyModuleMixin, nn.Sequential):
    """A container that stays lazy after its first call, because it has no class to become."""

    cls_to_become = None

    def initialize_parameters(self, *args: Any) -> None:
        pass


def called_once() -> nn.Module:
    made = LazySequential(*three())
    made(x)
    return made


@own(seq=called_once)
def lazy_sequential(self: Any, x: Any) -> Any:
    return self.seq(x)


class Bound(nn.Module):
    """A module with a function for its calls, `_call_impl`, in the object's dict."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self.__dict__["_call_impl"] = call


@own(c=lambda: Bound(lambda x: x * 2))
def call_is_a_function_of_the_object(self: Any, x: Any) -> Any:
    return self.c(x)


@own(c=lambda: Bound(functools.partial(torch.add, 1)))
def call_is_no_function(self: Any, x: Any) -> Any:
    return self.c(x)


@own(lin=lambda: nn.Linear(3, 3))
def called_by_its_methods(self: Any, x: Any) -> Any:
    return self.lin.__call__(x) + self.lin._call_impl(x) + self.lin._wrapped_call_impl(x)


if features.modules_tracked_by_slots:  # older releases fail: see test_lazy_module_exported

    @own(lin=lambda: nn.LazyLinear(3))
    def lazy(self: Any, x: Any) -> Any:
        return self.lin(x) + self.lin.weight.sum()


@own(g=lambda: torch.fx.symbolic_trace(L1()))
def graph_module(self: Any, x: Any) -> Any:
    return self.g(x)


# Methods of torch's modules


@own(conv=lambda: nn.Conv1d(3, 4, 1))
def inner_method_of_a_convolution(self: Any, x: Any) -> Any:
    return self.conv._conv_forward(x[:, :, None], self.conv.weight, self.conv.bias)


@own(conv=lambda: nn.ConvTranspose1d(3, 4, 2, stride=2))
def inner_method_of_a_transposed_convolution(self: Any, x: Any) -> Any:
    padding = self.conv._output_padding(x[:, :, None], [3], [2], [0], [2], 1)
    return x + len(padding)


@own(conv=lambda: nn.ConvTranspose1d(3, 4, 2, stride=2))
def size_of_a_transposed_convolution(self: Any, x: Any) -> Any:
    return self.conv.forward(x[:, :, None], output_size=[3])


@own(norm=lambda: nn.BatchNorm1d(3))
def check_of_the_input(self: Any, x: Any) -> Any:
    self.norm._check_input_dim(x)
    return self.norm(x)


class Checks(nn.BatchNorm1d):
    @functools.wraps(nn.BatchNorm1d._check_input_dim)
    def _check_input_dim(self, input: Any) -> Any:
        return input.sum()


@own(norm=Checks)
def own_check_of_the_input(self: Any, x: Any) -> Any:
    return x + self.norm._check_input_dim(x)


class Borrows(nn.Linear):
    """Dynamo finds a method by the name of its function."""

    check = nn.BatchNorm1d._check_input_dim
    conv = nn.Conv1d._conv_forward
    padding = nn.ConvTranspose1d._output_padding


if features.containers_have_slots:  # older releases ask for the check of any module

    @own(lin=lambda: Borrows(3, 3))
    def borrowed_check(self: Any, x: Any) -> Any:
        self.lin.check(x)
        return self.lin(x)


@own(lin=lambda: Borrows(3, 3))
def borrowed_convolution(self: Any, x: Any) -> Any:
    return self.lin.conv(x, x, x)


@own(lin=lambda: Borrows(3, 3))
def borrowed_padding(self: Any, x: Any) -> Any:
    return x + len(self.lin.padding(x, [3], [2], [0], [2], 1))


@own(ls=layers)
def place_as_text(self: Any, x: Any) -> Any:
    return x + int(self.ls._get_abs_string_index(-1))


@own(seq=lambda: nn.Sequential(*three()))
def item_by_place(self: Any, x: Any) -> Any:
    return self.seq._get_item_by_idx((self.seq[0], self.seq[2]), 1)(x)


@own(seq=lambda: nn.Sequential(*three()), free=lambda: (nn.ReLU(),))
def item_that_is_tracked_by_its_class(self: Any, x: Any) -> Any:
    return self.seq._get_item_by_idx((self.free[0],), 0)(x)


@own(seq=lambda: nn.Sequential(*three()))
def item_of_a_list_by_place(self: Any, x: Any) -> Any:
    return self.seq._get_item_by_idx([self.seq[0], self.seq[2]], 1)(x)


@own(seq=lambda: nn.Sequential(*three()))
def item_by_a_tensor(self: Any, x: Any) -> Any:
    return self.seq._get_item_by_idx((self.seq[0], self.seq[2]), x)(x)


@own(ls=layers)
def special_methods(self: Any, x: Any) -> Any:
    return self.ls.__getitem__(0)(x)


@own(ls=layers)
def length_by_its_method(self: Any, x: Any) -> Any:
    return x + self.ls.__len__()


@own(lin=lambda: nn.Linear(3, 3))
def method_that_gives_no_tensor(self: Any, x: Any) -> Any:
    return x + len(self.lin.extra_repr())


@own(loss=lambda: nn.AdaptiveLogSoftmaxWithLoss(3, 4, [2]))
def method_that_takes_tensors(self: Any, x: Any) -> Any:
    return self.loss.log_prob(input=x)


@own(loss=lambda: nn.AdaptiveLogSoftmaxWithLoss(3, 4, [2]))
def method_that_takes_a_number(self: Any, x: Any) -> Any:
    return self.loss.log_prob(3)


@own(pad=lambda: nn.Embedding(3, 3))
def method_without_arguments(self: Any, x: Any) -> Any:
    self.pad._fill_padding_idx_with_zero()
    return x


@own(act=nn.GELU)
def forward_of_a_module(self: Any, x: Any) -> Any:
    return self.act.forward(x) + methodcaller("forward", x)(self.act)


@own(lin=lambda: nn.Linear(3, 3))
def method_that_is_missing(self: Any, x: Any) -> Any:
    return methodcaller("nope", x)(self.lin)

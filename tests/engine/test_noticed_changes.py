"""A plan forgets its facts about modules when anything in them changes between runs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.engine import assert_same, by_torch, engine, info, nested

WARM_RUNS = 3  # the first makes the plan, the second remembers, the third relies on it


def _negate(x: torch.Tensor) -> torch.Tensor:
    return -x


class _Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


def _set_often(inner: Any) -> None:
    """Set an attribute by byte code that Python has specialized for this class."""
    for value in [inner.arg_names] * 100 + [[]]:
        inner.arg_names = value
    inner.forward = _negate


def _new_dict(module: Any, **changes: Any) -> Any:
    """Give a module another `__dict__`, and return the old one, which stays alive."""
    old = module.__dict__
    module.__dict__ = {**old, **changes}
    return old


def _in_old_dict(inner: Any) -> None:
    old = _new_dict(inner)
    old["forward"] = _negate  # nobody asks this one
    inner.__dict__["_parameters"] = {"weight": nn.Parameter(torch.ones(4, 4))}


def _class(outer: Any) -> None:
    outer.inner.__class__ = type("Other", (type(outer.inner),), {"forward": _forward_of_class})


def _forward_of_class(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x + 3


CHANGES: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda outer: setattr(outer.inner, "forward", _negate),
    "specialized": lambda outer: _set_often(outer.inner),
    "item": lambda outer: outer.inner.__dict__.__setitem__("forward", _negate),
    "update": lambda outer: outer.inner.__dict__.update(forward=_negate),
    "merge": lambda outer: outer.inner.__dict__.__ior__({"forward": _negate}),
    "default": lambda outer: outer.inner.__dict__.setdefault("forward", _negate),
    "dict": lambda outer: _new_dict(outer.inner, forward=_negate),
    "dict of the root": lambda outer: _new_dict(outer, _modules={"inner": _Doubling()}),
    "old dict": lambda outer: _in_old_dict(outer.inner),
    "class": _class,
    "weight": lambda outer: setattr(outer.inner, "weight", nn.Parameter(torch.ones(4, 4))),
    "weight in the table": lambda outer: outer.inner._parameters.update(
        weight=nn.Parameter(torch.ones(4, 4))
    ),
    "table of weights": lambda outer: setattr(
        outer.inner, "_parameters", OrderedDict(weight=nn.Parameter(torch.ones(4, 4)))
    ),
    "weight that hides": lambda outer: outer.inner.__dict__.update(weight=torch.ones(4, 4)),
    "swapped tensors": lambda outer: torch.utils.swap_tensors(
        outer.inner.weight, nn.Parameter(torch.ones(4, 4))
    ),
    "data": lambda outer: setattr(outer.inner.weight, "data", torch.ones(4, 4)),
    "child": lambda outer: outer._modules.__setitem__("inner", _Doubling()),
    "table of children": lambda outer: setattr(outer, "_modules", {"inner": _Doubling()}),
    "child that hides": lambda outer: outer.__dict__.update(inner=_Doubling()),
    "hook": lambda outer: outer.inner.register_forward_hook(lambda m, a, out: out + 1),
    "table of hooks": lambda outer: setattr(
        outer.inner, "_forward_hooks", OrderedDict({0: lambda m, a, out: out + 1})
    ),
    "hook in a new dict": lambda outer: _new_dict(
        outer.inner, _forward_pre_hooks=OrderedDict({0: lambda m, a: (a[0] + 1,)})
    ),
    "graph": lambda outer: setattr(outer.inner, "graph", nested()[0].inner.graph),
    "root of the graph": lambda outer: outer.inner.graph.__dict__.update(
        _root=nested(relu=torch.ops.aten.neg.default)[0].graph._root
    ),
}


def _dicts_apart(module: Any) -> None:
    """Let the dicts have their values themselves, as in modules that `unflatten` makes."""
    for part in (module, module.inner, module.graph, module.inner.graph):
        part.__dict__ = dict(part.__dict__)


@pytest.mark.parametrize("apart", [False, True], ids=["values in the object", "dict apart"])
@pytest.mark.parametrize("name", CHANGES)
def test_changes_between_runs(name: str, apart: bool) -> None:
    module, x = nested()
    other, _ = nested()  # shares nothing with it
    if apart:
        _dicts_apart(module)
    with engine():
        for _ in range(WARM_RUNS):
            module(x)
        assert info(module)["inlined"] == 1
    CHANGES[name](module)
    try:
        expected = by_torch(module, module.graph, x)
        error = None
    except Exception as raised:
        error = raised
    with engine():
        for _ in range(WARM_RUNS):
            if error is None:
                assert_same(module(x), expected)
            else:
                with pytest.raises(type(error)):
                    module(x)
        assert_same(other(x), by_torch(other, other.graph, x))

"""Objects of native classes that no constructor has seen: there are none."""

from __future__ import annotations

import copy
import gc
import pickle
from typing import Any

import pytest
import torch.nn

from fxpress import _native
from fxpress._torch import aten

CLASSES = [
    value
    for module in (_native, aten.extension)
    for value in vars(module).values()
    if isinstance(value, type) and not issubclass(value, BaseException)
]


def test_there_are_classes() -> None:
    assert len(CLASSES) > 12


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_object_is_made_by_the_class_alone(cls: Any) -> None:
    for base in cls.__mro__:
        with pytest.raises(TypeError):
            base.__new__(cls)
    with pytest.raises(TypeError):
        type.__call__(cls)
    with pytest.raises(TypeError):
        type("Derived", (cls,), {"__init__": lambda self: None})


def made() -> list[Any]:
    return [
        _native.GcPause(),
        _native.RareCollections(),
        _native.Installation(),
        _native.CommonSubexpressions(),
        _native.Block(list, list),
        _native.DeferredAttribute("name"),
        _native.ComputedAttribute("name", len),
    ]


@pytest.mark.parametrize("index", range(7))
def test_they_have_no_copies(index: int) -> None:
    one = made()[index]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(one, protocol)
    with pytest.raises(TypeError, match="pickle"):
        copy.copy(one)
    assert repr(one)


def test_descriptors_want_their_arguments() -> None:
    for cls, wrong in (
        (_native.DeferredAttribute, ((), (1,), ("a", "b"))),
        (_native.ComputedAttribute, ((), ("a",), (1, len))),
    ):
        for args in wrong:
            with pytest.raises(TypeError):
                cls(*args)
            with pytest.raises(TypeError):
                cls.__new__(cls, *args)


class Evil(str):
    """A name whose __eq__, in Python, returns True for everything."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    def __hash__(self) -> int:
        raise ZeroDivisionError


def test_names_of_descriptors_are_plain() -> None:
    assert type(_native.DeferredAttribute(Evil("x")).name) is str

    class Holder:
        x = _native.ComputedAttribute(Evil("x"), lambda holder: 3)

    assert Holder().x == 3


def test_a_table_that_goes_while_a_key_is_compared() -> None:
    """A comparison of keys runs user code, which removes the table of parameters."""
    module = torch.nn.Module()

    class Key(str):
        def __hash__(self) -> int:
            return hash("found")

        def __eq__(self, other: object) -> bool:
            vars(module)["_parameters"] = {}
            gc.collect()
            return False

    vars(module)["_parameters"] = {Key("other"): 1}
    descriptor = _native.ComputedAttribute("found", lambda module: "computed")
    assert descriptor.__get__(module, type(module)) == "computed"


def test_an_attribute_of_the_class_and_of_an_instance() -> None:
    class Holder:
        x = _native.ComputedAttribute("x", lambda holder: "computed")

    assert Holder.x is vars(Holder)["x"]
    assert Holder.x.name == "x"
    holder = Holder()
    holder.x = 3
    assert holder.x == vars(holder)["x"] == 3
    del holder.x
    assert vars(holder) == {}
    assert holder.x == "computed"
    with pytest.raises(AttributeError):
        del Holder().x

"""fxpress.nn_module: fixes, parts, and the state after uninstall()."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch._dynamo import variables
from torch._dynamo.source import (
    AttrSource,
    FSDPNNModuleSource,
    LocalSource,
    UnspecializedNNModuleSource,
)
from torch._dynamo.variables import nn_module as torch_tracking
from torch._dynamo.variables.base import VariableTrackerMeta
from torch._dynamo.variables.builtin import BuiltinVariable

import fxpress
from fxpress import _native, nn_module
from fxpress._torch.tracking_variants import attribute_of
from fxpress._torch.versions import features
from tests.support.tracking import Tracer, observed, observed_with_ours, plain
from tests.support.tracking_cases import L1, module, x
from tests.support.versions import needs

NAMES = nn_module.__all__


def frames_and_values(program: Callable[[Tracer], None]) -> tuple[int, list[Any]]:
    """Return the number of graphs, and the values, of a run with fxpress."""
    seen = observed_with_ours(program)
    assert seen.error is None, seen.message
    return len(seen.graphs), seen.values


def as_eager(build: Callable[[], nn.Module], *, torch_is_wrong: bool = True) -> None:
    """Assert that one call with fxpress gives the eager result."""

    def program(t: Tracer) -> None:
        t.call(build(), x)

    torch.manual_seed(0)
    eager = Tracer()
    eager.log(build()(x))
    assert observed_with_ours(program).values == eager.seen.values
    assert (observed(program).values != eager.seen.values) is torch_is_wrong


def test_name_among_buffers_and_modules() -> None:
    def build() -> nn.Module:
        m = module(lambda self, x: x + (self.z if isinstance(self.z, torch.Tensor) else 100))
        m._buffers["z"] = torch.ones(3)
        m._modules["z"] = nn.ReLU()
        return m

    as_eager(build)


def test_buffer_added_inside_beside_a_module() -> None:
    def forward(self: Any, x: Any) -> Any:
        self._buffers["z"] = torch.ones(3) * 2
        z = self.z
        return x + (z if isinstance(z, torch.Tensor) else 100)

    as_eager(lambda: module(forward, z=nn.ReLU()))


def deleting(self: Any, x: Any) -> Any:
    try:
        del self.nope
    except AttributeError as error:
        return x + len(str(error))
    return x


def test_deletion_of_what_is_not_there() -> None:
    as_eager(lambda: module(deleting))


def deleting_twice(self: Any, x: Any) -> Any:
    del self.lin
    try:
        del self.lin
    except AttributeError:
        return x * 2
    return x


def test_second_deletion() -> None:
    as_eager(lambda: module(deleting_twice, lin=nn.Linear(3, 3)))


class Table(dict[str, Any]):
    """A table of state that is a dict of the user's."""


def deleting_buffers(self: Any, x: Any) -> Any:
    del self.b
    try:
        del self.b
    except AttributeError:
        return x + 100
    return x


def test_second_deletion_from_a_table_of_the_user() -> None:
    def build() -> nn.Module:
        m = module(deleting_buffers)
        m.register_buffer("b", torch.ones(3))
        m.__dict__["_buffers"] = Table(m._buffers)
        return m

    as_eager(build)


def deleting_members(self: Any, x: Any) -> Any:
    del self.lin, self.w, self.b, self.q
    left = [name for name in ("lin", "w", "b", "q") if hasattr(self, name)]
    return x + len(left)


def test_deletion_of_members() -> None:
    def build() -> nn.Module:
        m = module(deleting_members, lin=nn.Linear(3, 3), w=nn.Parameter(torch.ones(3)), q=1)
        m.register_buffer("b", torch.ones(3))
        return m

    as_eager(build, torch_is_wrong=False)


class TooEarly(nn.Module):
    def __init__(self, part: Any) -> None:
        self.part = part
        super().__init__()


class InTime(nn.Module):
    def __init__(self, part: Any) -> None:
        self.number = 3
        super().__init__()
        self.part = part


@pytest.mark.parametrize("part", [nn.ReLU(), nn.Parameter(torch.ones(3))], ids=["module", "param"])
def test_state_assigned_before_the_constructor(part: Any) -> None:
    def forward(self: Any, x: Any) -> Any:
        made = InTime(self.other)
        try:
            TooEarly(self.other)
        except AttributeError as error:
            return made.part(x) + len(str(error)) + made.number
        return x

    def of_parameter(self: Any, x: Any) -> Any:
        try:
            TooEarly(self.other)
        except AttributeError as error:
            return x + len(str(error))
        return x

    chosen = forward if isinstance(part, nn.ReLU) else of_parameter
    as_eager(lambda: module(chosen, other=part))


def times_five(self: Any, x: Any) -> Any:
    return x * 5


# A change of a module's class, or of all modules, that is undone at the end of a block.
CHANGES: dict[str, Callable[[nn.Module], AbstractContextManager[Any]]] = {
    "forward_of_the_class_is_replaced": lambda m: mock.patch.object(L1, "forward", times_five),
    "class_gets_a_forward": lambda m: mock.patch.object(type(m), "forward", times_five),
    "class_gets_a_call": lambda m: mock.patch.object(type(m), "__call__", times_five),
    "base_gets_a_call": lambda m: mock.patch.object(type(m).__base__, "__call__", times_five),
    "class_gets_a_call_impl": lambda m: mock.patch.object(type(m), "_call_impl", times_five),
    "base_gets_a_call_impl": lambda m: mock.patch.object(
        type(m).__base__, "_call_impl", times_five
    ),
    "way_of_calling_is_replaced": lambda m: mock.patch.object(
        nn.Module, "_call_impl", lambda self, *args: self.forward(*args) + 1
    ),
    "later_global_hook": lambda m: nn.modules.module.register_module_forward_hook(
        lambda module, args, out: out * 2
    ),
    "later_global_pre_hook": lambda m: nn.modules.module.register_module_forward_pre_hook(
        lambda module, args: (args[0] * 2,)
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_changes_after_the_first_call(
    change: Callable[[nn.Module], AbstractContextManager[Any]],
) -> None:
    """A change after a first call is seen by the second; torch misses most."""

    def program(t: Tracer) -> None:
        m = type("Leaf", (type("Base", (L1,), {}),), {})()
        compiled = t.call(m, x)
        with change(m):
            t.log(compiled(x))
            t.log(m(x))

    frames, values = frames_and_values(program)
    assert frames == 2
    assert values[1] == values[2] != values[0]
    theirs = observed(program)
    if len(theirs.graphs) == 1:
        assert theirs.values[1] != theirs.values[2]
    else:  # torch 2.15 sees that a class gets a forward
        assert theirs.values == values


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.w


class TwiceScaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = Scaled(), Scaled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


@pytest.mark.slow("torch compiles a program ahead of time")
def test_saved_guards(tmp_path: Path) -> None:
    """Graphs that are kept in files have no guards that cannot be."""
    keep = torch.compiler.skip_guard_on_globals_unsafe

    made = TwiceScaled()
    with fxpress.installed():
        torch._dynamo.reset()
        compiled: Any = torch.compile(made, fullgraph=True, options={"guard_filter_fn": keep})
        compiled.forward.aot_compile(((x,), {})).save_compiled_function(str(tmp_path / "kept"))
    ours = b"_".join([b"", b"torch", b"compat"])  # the file has the text of this test as well
    assert ours not in (tmp_path / "kept").read_bytes()


# Attributes that torch finds


def bindings() -> dict[tuple[str, str], Any]:
    originals = {id(getattr(torch_tracking, name)) for name in NAMES}
    return {
        (key, name): value
        for key, each in list(sys.modules.items())
        if key.startswith("torch._dynamo")
        for name, value in list(vars(each).items())
        if id(value) in originals
    }


def test_uninstall_leaves_nothing() -> None:
    before = bindings()
    assert len(before) >= 17
    listed = list(VariableTrackerMeta.all_subclasses)
    with fxpress.installed():
        assert not any(torch_tracking.__dict__[name] is each for (_, name), each in before.items())
        Tracer().call(module(lambda self, x: x + isinstance(self, nn.Linear)), x)
        handlers = BuiltinVariable.call_function_handler_cache
        ours = nn_module._TRACKERS
        assert any(set(key) & set(ours) for key in handlers)
    assert bindings() == before
    assert not any(set(key) & set(ours) for key in handlers)
    assert VariableTrackerMeta.all_subclasses == listed
    assert not set(listed) & set(ours)


def test_hierarchy() -> None:
    unspecialized = nn_module.UnspecializedNNModuleVariable
    for name in NAMES[:4]:
        assert issubclass(getattr(nn_module, name), getattr(torch_tracking, name))
        assert getattr(nn_module, name).__name__ == name
    assert issubclass(nn_module.UnspecializedBuiltinNNModuleVariable, unspecialized)
    assert issubclass(nn_module.FSDPManagedNNModuleVariable, unspecialized)
    original = variables.UnspecializedNNModuleVariable
    with fxpress.installed():
        door = variables.UnspecializedNNModuleVariable
        assert issubclass(door, variables.UserDefinedObjectVariable)
        assert issubclass(original, door)
        assert issubclass(unspecialized, door)
        assert type(door(nn.ReLU())) is unspecialized
        assert isinstance(original(nn.ReLU()), door)

        class Own(door):  # type: ignore[misc, valid-type]
            pass

        assert issubclass(Own, unspecialized)
        assert isinstance(Own(nn.ReLU()), door)
    VariableTrackerMeta.all_subclasses.remove(Own)
    assert type(door(nn.ReLU())) is original  # kept by somebody


def test_both_kinds_in_one_trace() -> None:
    """A call that is left to torch uses torch's classes while names are fxpress's."""
    with fxpress.installed(), fxpress._install._installation.left_to_torch():
        seen = observed(lambda t: t.call(nn.Sequential(L1(), nn.ReLU()), x) and None)
    assert seen.error is None
    assert len(seen.graphs) == 1


# The parts


def translator() -> Any:
    return SimpleNamespace(num_calls={}, nn_module_stack={"outer": ("o", nn.Module)})


@contextmanager
def stacks(record: Any) -> Iterator[list[dict[str, Any]]]:
    tx, seen = translator(), []
    m = L1()
    source = AttrSource(LocalSource("m"), "_modules")
    with record("7", source, tx, m):
        seen.append(dict(tx.nn_module_stack))
        with record("7", source, tx, m), record("8", LocalSource("n"), tx, m):
            seen.append(dict(tx.nn_module_stack))
    with pytest.raises(ZeroDivisionError), record("7", source, tx, m):
        seen.append(dict(tx.nn_module_stack))
        raise ZeroDivisionError
    seen.extend([dict(tx.nn_module_stack), tx.num_calls])
    yield seen


def test_stack_of_modules() -> None:
    with (
        stacks(nn_module.record_nn_module_stack) as ours,
        stacks(torch_tracking.record_nn_module_stack) as theirs,
    ):
        assert ours == theirs


def test_forward_without_source() -> None:
    nn_module.guard_to_detect_forward_monkeypatching(None, L1())


def test_module_that_is_not_lazy() -> None:
    nn_module.initialize_lazy_module(translator(), nn.Linear(2, 2), [], {})


def test_managed_modules_need_a_source() -> None:
    for tracking in (nn_module, torch_tracking):
        with pytest.raises(AssertionError):
            tracking.FSDPManagedNNModuleVariable(L1())


@pytest.mark.parametrize("tracking", [nn_module, torch_tracking], ids=["ours", "torch"])
def test_module_without_a_source(tracking: Any) -> None:
    m = L1()
    for each in (
        tracking.UnspecializedNNModuleVariable(m),
        tracking.NNModuleVariable(L1, "m", m),
    ):
        with pytest.raises(AssertionError):
            each.get_nn_module_stack_source()
    tx = SimpleNamespace(output=SimpleNamespace(get_submodule={"m": m}.get))
    with pytest.raises(torch._dynamo.exc.Unsupported) as raised:
        attribute_of(each, tx, "lin")
    assert getattr(raised.value, "gb_type", "getattr with no source") == "getattr with no source"


@pytest.mark.parametrize("tracking", [nn_module, torch_tracking], ids=["ours", "torch"])
def test_class_of_a_module_that_is_lazy_no_longer(tracking: Any) -> None:
    """A variable is copied with the class that it had."""
    made = nn.LazyLinear(2)
    lazy = tracking.UnspecializedNNModuleVariable(made, value_type=nn.LazyLinear)
    made(x)
    after = tracking.UnspecializedNNModuleVariable(made, value_type=nn.LazyLinear)
    assert (lazy.python_type(), after.python_type()) == (nn.LazyLinear, nn.Linear)


@pytest.mark.parametrize("tracking", [nn_module, torch_tracking], ids=["ours", "torch"])
@pytest.mark.parametrize("skip", [True, False])
def test_sources_of_managed_modules(tracking: Any, skip: bool) -> None:
    source = LocalSource("m")
    variable = tracking.FSDPManagedNNModuleVariable(L1(), source=source)
    with torch._dynamo.config.patch(skip_fsdp_guards=skip):
        wrapped = variable._wrap_source(source)
        assert type(wrapped) is (FSDPNNModuleSource if skip else UnspecializedNNModuleSource)
        assert variable._wrap_source(wrapped) is wrapped


def test_class_attributes() -> None:
    class Meta(type):
        x = 1

    class Base(metaclass=Meta):
        y = 2

    class Leaf(Base):
        z = property(lambda self: 1 / 0)

    assert _native.class_attribute(Leaf, "z", None) is Leaf.__dict__["z"]
    assert _native.class_attribute(Leaf, "y", None) == 2
    assert _native.class_attribute(Leaf, "x", "missing") == "missing"  # the metaclass has it
    for wrong in ((3, "x", None), (Leaf, 3, None), (Leaf, None, None)):
        with pytest.raises(TypeError):
            _native.class_attribute(*wrong)  # type: ignore[arg-type]


class Counted(dict):  # type: ignore[type-arg]
    pass


@pytest.mark.parametrize("table", [{"a": 1}, Counted(), None, 3])
def test_tables_that_are_not_empty(table: Any) -> None:
    m = nn.ReLU()
    names = ("_forward_hooks", "_backward_hooks")
    assert _native.has_empty_tables(m, names)
    m.__dict__["_backward_hooks"] = table
    assert not _native.has_empty_tables(m, names)
    assert _native.has_plain_tables({"a": {}}, ("a",))
    assert _native.has_plain_tables({"a": table}, ("a",)) is (type(table) is dict)
    assert not _native.has_plain_tables({}, ("a",))


def test_tables_that_the_class_hides() -> None:
    made = type("M", (nn.ReLU,), {"_forward_hooks": property(lambda self: {1: 2})})
    assert not _native.has_empty_tables(object.__new__(made), ("_forward_hooks",))


@pytest.mark.parametrize("names", [["_modules"], (3,), "_modules", None])
def test_names_of_tables(names: Any) -> None:
    with pytest.raises(TypeError):
        _native.has_empty_tables(nn.ReLU(), names)
    with pytest.raises(TypeError):
        _native.has_plain_tables({}, names)


def test_objects_without_a_namespace() -> None:
    with pytest.raises(AttributeError):
        _native.has_empty_tables(3, ("a",))
    with pytest.raises(TypeError):
        _native.has_plain_tables(3, ("a",))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _native.path_without_tables(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path",
    [
        "L['m']._modules['a']._modules['0']._parameters['weight']",
        "L['m']._buffers[\"b\"].x",
        "._modules['a']._modules['b']",
        "getattr(L['m']._modules['s'], '0')",
        "._modules['._modules']['a']",
        "._._modules['a'][",
        "L['m']._modules['\udc80'].x",
        "L['m']._modules['é']._buffers['b']",
        # An attribute that is not a table stays.
        *("L['m'].\udc80", "", "._", "._modules", "._modules[", "._modules['", "._modules['a"),
        *("._modules['a'", "._modules['']", "._modules['a\"]", "._modules['a[0]']"),
        *("._modules['a'b']", "._modules[a]", "._other['a']", "_modules['a']", "x.modules['a']"),
        "._modules'a'",
    ],
)
def test_paths(path: str) -> None:
    tx = translator()
    source: Any = SimpleNamespace(name=path)
    with torch_tracking.record_nn_module_stack("1", source, tx, L1()):
        pass
    (expected,) = tx.num_calls
    assert _native.path_without_tables(path) == expected


def test_trace_is_released() -> None:
    """Nothing of ours keeps a module, a variable or a graph of a trace that is over."""
    with fxpress.installed():
        seen = observed(lambda t: t.call(nn.Sequential(L1(), nn.ReLU()), x) and None)
        assert len(seen.graphs) == 1
        m = L1()
        alive = weakref.ref(m)
        t = Tracer()
        t.call(m, x)
        del m, t
        torch._dynamo.reset()
        gc.collect()
        assert alive() is None
        kinds = nn_module._TRACKERS
        assert not [each for each in gc.get_objects() if type(each) in kinds]


def test_key_in_a_dict_of_parameters() -> None:
    """torch looks among the submodules, where no parameter is, until 2.15."""

    class Holder(nn.Module):
        torchdynamo_force_dynamic = False

    d = nn.ParameterDict({"a": nn.Parameter(torch.ones(3))})

    def forward(self: Any, x: Any) -> Any:
        return x + 1 if self.d.__contains__("a") else x - 1

    def program(t: Tracer) -> None:
        made = module(forward)
        made.d = d
        with torch._dynamo.config.patch(install_free_tensors_for_export=False):
            exported = torch._dynamo.export(made)(x)
        t.log(exported.graph_module(x))

    assert frames_and_values(program)[1] == [plain(x + 1)]
    seen = observed(program)
    is_right = seen.error is None and seen.values == [plain(x + 1)]
    assert is_right == features.containers_have_slots


def test_lazy_module_of_a_dynamic_size() -> None:
    """torch 2.13 creates the module's parameters with symbolic sizes."""

    def program(t: Tracer) -> None:
        made = nn.LazyLinear(2)
        given = torch.ones(3, 5)
        torch._dynamo.mark_dynamic(given, 0)
        t.call(made, given)
        t.log(tuple(made.weight.shape))

    frames, values = frames_and_values(program)
    assert (frames, values[1]) == (1, [2, 5])


def test_lazy_module_exported() -> None:
    """torch 2.13 gives it no parameters: the batch is a symbol in legacy export."""

    def program(t: Tracer) -> None:
        t.export(module(lambda self, x: self.lin(x), lin=nn.LazyLinear(4)), x)

    assert frames_and_values(program)[0] == 1
    assert (observed(program).error is None) == features.modules_tracked_by_slots


def test_the_initialization_of_lazy_modules_is_looked_up_without_code_of_the_user() -> None:
    asked = []

    class Curious(nn.Module):
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return super().__getattr__(name)

    nn_module.initialize_lazy_module(None, Curious(), [], {})
    assert "_initialize_hook" not in asked


@needs("modules_tracked_by_slots")
def test_the_table_of_methods_is_ours() -> None:
    """Dynamo would find torch's own handlers in the base class."""
    for name in torch_tracking.NNModuleVariable.tp_methods:
        method = nn_module.NNModuleVariable.lookup_tp_method(
            object.__new__(nn_module.NNModuleVariable), name
        )
        assert method is nn_module.NNModuleVariable.tp_methods[name]

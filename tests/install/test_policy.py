"""install(): policies, the switch in the environment, stand-ins, and the real table."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import logging
import pickle
import threading
from abc import ABC, abstractmethod

import pytest

from fxpress import _install
from fxpress._base.errors import InternalError, UnsupportedError
from fxpress._install import install, installed, is_installed, uninstall
from fxpress._torch import probes
from tests.support.components import OURS, TORCH, table

# --- policy --------------------------------------------------------------------------------------


def test_raise_is_the_default(component, caplog):
    with installed(), pytest.raises(UnsupportedError, match="node odd"):
        component.torch.cut("odd")
    assert not caplog.records


def test_torch_takes_what_we_do_not_support(component, caplog):
    with installed(on_unsupported="torch"):
        assert component.torch.cut("odd", at=3) == ("torch", "odd", 3)
        assert component.torch.cut("odd") == ("torch", "odd", 0)
        assert component.torch.cut("even") == ("ours", "even", 0)
    assert [(r.name, r.levelno) for r in caplog.records] == [("fxpress", logging.WARNING)] * 2
    text = caplog.records[0].getMessage()
    assert f"{TORCH}.cut" in text
    assert "node odd: no such luck" in text
    assert caplog.records[0].pathname == __file__  # the caller's line, not ours


def test_torch_takes_nothing_but_unsupported(component):
    with installed(on_unsupported="torch"), pytest.raises(ValueError, match="bad graph"):
        component.torch.cut("bad")


def test_torchs_own_exception_does_not_carry_ours(component):
    def failing(graph):
        raise LookupError(graph)

    component.torch.cut = failing
    with installed(on_unsupported="torch"), pytest.raises(LookupError) as caught:
        component.torch.cut("odd")
    assert caught.value.__context__ is None


SIBLINGS = """
def first(graph): return "torch", second(graph), Kind(graph)
def second(graph): return "torch"
class Kind:
    def __init__(self, graph): self.graph = graph
"""
OUR_SIBLINGS = """
from fxpress._base.errors import UnsupportedError

def first(graph):
    if graph == "odd":
        raise UnsupportedError("node odd")
    return "ours"

def second(graph): return "ours"

class Kind:
    def __init__(self, graph): self.graph = graph
"""


def test_all_of_torch_is_itself_for_a_call_that_is_left_to_it(module, use):
    """In a call that is left to torch, torch's original functions call each other."""
    torch, ours = module(TORCH, SIBLINGS), module(OURS, OUR_SIBLINGS)
    use(table("first", "second", "Kind"))
    torchs_kind = torch.Kind
    with installed(on_unsupported="torch"):
        for _ in range(2):
            whole, part, kind = torch.first("odd")
            assert (whole, part, type(kind)) == ("torch", "torch", torchs_kind)
            assert torch.first("even") == torch.second("odd") == "ours"
            assert type(torch.Kind("odd")) is ours.Kind


def test_only_the_thread_of_the_call_sees_torch(module, use):
    torch = module(TORCH, SIBLINGS)
    module(OURS, OUR_SIBLINGS)
    use(table("first", "second", "Kind"))
    seen = []

    def second(graph):
        thread = threading.Thread(target=lambda: seen.append(torch.first("even")))
        thread.start()
        thread.join()
        return "torch"

    torch.second = second
    with installed(on_unsupported="torch"):
        assert torch.first("odd")[1] == "torch"
    assert seen == ["ours"]


def test_torch_failing_brings_ours_back(module, use):
    torch = module(TORCH, SIBLINGS.replace('return "torch", second(graph)', "return 1 / 0"))
    module(OURS, OUR_SIBLINGS)
    use(table("first", "second"))
    with installed(on_unsupported="torch"):
        with pytest.raises(ZeroDivisionError):
            torch.first("odd")
        assert torch.second("odd") == "ours"


def test_calls_to_fxpress_itself_always_raise(component):
    with installed(on_unsupported="torch"), pytest.raises(UnsupportedError):
        component.ours.cut("odd")


def test_the_innermost_policy_is_in_force(component):
    def outcome() -> str:
        try:
            return component.torch.cut("odd")[0]
        except UnsupportedError:
            return "raised"

    install(on_unsupported="torch")
    assert outcome() == "torch"
    with installed():
        assert outcome() == "raised"
        with installed(on_unsupported="torch"):
            assert outcome() == "torch"
        assert outcome() == "raised"
    assert outcome() == "torch"
    install()
    assert outcome() == "raised"
    uninstall()
    assert outcome() == "torch"
    uninstall()


# --- the switch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["1", "true", "YES", " True "])
def test_the_environment_switches_it_off(component, monkeypatch, caplog, value):
    caplog.set_level(logging.INFO, logger="fxpress")
    monkeypatch.setenv("FXPRESS_DISABLE", value)
    for _ in range(2):
        install()
        with installed():
            assert component.torch.cut is component.cut
            assert not is_installed()
        uninstall()
    with pytest.raises(RuntimeError):  # it still counts
        uninstall()
    assert [r.levelno for r in caplog.records] == [logging.INFO]


@pytest.mark.parametrize("value", ["", "0", "false", "no"])
def test_the_environment_leaves_it_on(component, monkeypatch, value):
    monkeypatch.setenv("FXPRESS_DISABLE", value)
    with installed():
        assert component.torch.cut is not component.cut


def test_the_first_install_reads_the_environment(component, monkeypatch):
    install()
    monkeypatch.setenv("FXPRESS_DISABLE", "1")
    with installed():
        assert is_installed()
    uninstall()
    assert component.torch.cut is component.cut
    install()
    monkeypatch.delenv("FXPRESS_DISABLE")
    with installed():
        assert not is_installed()
    uninstall()


def test_disabled_does_not_even_load_the_components(component, use, monkeypatch):
    use(table("cut", ours="fxpress._no_such_component"))
    monkeypatch.setenv("FXPRESS_DISABLE", "1")
    with installed():
        assert component.torch.cut is component.cut


# --- functions -----------------------------------------------------------------------------------


def test_a_function_stand_in_looks_like_torchs(component):
    original = component.cut
    with installed():
        cut = component.torch.cut
        assert (cut.__name__, cut.__doc__) == ("cut", "our cut")
        assert inspect.signature(cut) == inspect.signature(original)
        assert not hasattr(cut, "__wrapped__")


def test_a_function_pickles_as_the_name_it_stands_for(component):
    was = pickle.dumps(component.cut)
    with installed():
        assert pickle.dumps(component.torch.cut) == was
        assert pickle.loads(was) is component.torch.cut
    assert pickle.loads(was) is component.cut


# --- classes -------------------------------------------------------------------------------------


def test_isinstance_and_issubclass_accept_both_kinds(component, module):
    user = module("class_user", f"from {TORCH} import Part\nclass Old(Part): pass")
    old, older = component.part("old"), user.Old("older")
    with installed():
        new, ours = component.torch.Part("new"), component.ours.Part("ours")
        for part in (old, older, new, ours):
            assert isinstance(part, component.torch.Part)
        for kind in (component.part, user.Old, component.ours.Part, component.torch.Part):
            assert issubclass(kind, component.torch.Part)
        assert not isinstance("text", component.torch.Part)
        assert not issubclass(str, component.torch.Part)
        assert issubclass(component.torch.Part, component.ours.Part)
        stand_in = [component.torch.Part]
    assert isinstance(new, stand_in[0])
    assert isinstance(old, stand_in[0])


def test_a_class_stand_in_looks_like_torchs(component):
    original = component.part
    with installed():
        part = component.torch.Part
        assert isinstance(part, type)
        assert part.__bases__ == (component.ours.Part,)
        assert part.__doc__ == component.ours.Part.__doc__
        for name in ("__name__", "__qualname__", "__module__"):
            assert getattr(part, name) == getattr(original, name)
        assert inspect.signature(part) == inspect.signature(original)


def test_what_a_class_stand_in_makes_is_ours_for_good(component):
    with installed():
        part = component.torch.Part("p", size=2)
        assert type(part) is component.ours.Part
        assert pickle.loads(pickle.dumps(component.torch.Part)) is component.ours.Part
    again = pickle.loads(pickle.dumps(part))
    assert type(again) is component.ours.Part
    assert (again.name, again.size) == ("p", 2)


def test_subclasses_of_a_class_stand_in(component):
    with installed():
        real = component.ours.Part
        real.__init_subclass__ = classmethod(lambda cls, **kw: setattr(cls, "said", kw))

        class Mine(component.torch.Part, word="hello"):
            def __init__(self, name):
                super().__init__(name, size=5)

        class Marked(ABC):
            @abstractmethod
            def mark(self): ...

        class Mixed(component.torch.Part, Marked):
            def mark(self):
                return self.name

        assert isinstance(Mine("m"), component.torch.Part)
        assert issubclass(Mine, component.torch.Part)
        assert not isinstance(component.torch.Part("p"), Mine)
    assert Mine.__mro__ == (Mine, real, object)
    assert type(Mine) is type
    assert Mine.said == {"word": "hello"}
    assert Mine("m").size == 5
    assert Mixed("x").mark() == "x"
    assert list(inspect.signature(Mine).parameters) == ["name"]


def test_an_abstract_class(module, use):
    lines = (
        "import abc\nclass Adapter(abc.ABC):\n    @abc.abstractmethod\n    def adapt(self): ...\n"
    )
    torch, _ = module(TORCH, lines), module(OURS, lines)
    use(table("Adapter"))
    with installed():
        with pytest.raises(TypeError, match="abstract"):
            torch.Adapter()

        class Good(torch.Adapter):
            def adapt(self):
                return 1

        assert isinstance(Good(), torch.Adapter)
    assert Good().adapt() == 1


# --- errors --------------------------------------------------------------------------------------


def test_the_kinds_of_our_errors():
    assert issubclass(UnsupportedError, NotImplementedError)
    assert issubclass(UnsupportedError, RuntimeError)
    assert issubclass(InternalError, RuntimeError)
    assert not issubclass(InternalError, NotImplementedError)


# --- the real table ------------------------------------------------------------------------------


def test_the_table_names_our_own_modules_and_nothing_twice():
    components = _install.ENTRIES
    assert all(entry.module.startswith("torch.") for entry in components)
    assert all(entry.provider[0].startswith("fxpress.") for entry in components)
    assert len({(entry.module, entry.name) for entry in components}) == len(components)


@pytest.fixture
def real(use):
    pytest.importorskip("fxpress.split_module")
    use(_install.ENTRIES)
    source = importlib.import_module("torch.fx.passes.split_module")
    names = [entry.name for entry in _install.ENTRIES if entry.module == source.__name__]
    return source, {name: vars(source)[name] for name in names if name in vars(source)}


def look(function):
    """Return the attributes that a replaced function keeps."""
    signature = None
    with contextlib.suppress(ValueError):
        signature = inspect.signature(function)
    names = ("__module__", "__qualname__", "__name__", "__wrapped__")
    return [getattr(function, name, None) for name in names], signature


def test_replaced_functions_look_like_torchs(use):
    use(_install.ENTRIES)
    sources = {e: importlib.import_module(e.module) for e in _install.ENTRIES}
    before = {e: vars(s)[e.name] for e, s in sources.items() if e.name in vars(s)}
    marks = [set(table) for table in probes.COMPATIBILITY_MARKS]
    with installed():
        replaced = {e: vars(sources[e])[e.name] for e in before}
        for entry, original in before.items():
            assert replaced[entry] is not original
            assert look(replaced[entry]) == look(original), entry
        stand_in = {original: replaced[entry] for entry, original in before.items()}
        for table, marked in zip(probes.COMPATIBILITY_MARKS, marks, strict=True):
            assert set(table) == {stand_in.get(each, each) for each in marked}
    assert [set(table) for table in probes.COMPATIBILITY_MARKS] == marks


def test_every_real_name_has_a_provider_with_torchs_parameters(real):
    _, originals = real
    ours = importlib.import_module("fxpress.split_module")
    for name, original in originals.items():
        want = [(p.name, p.kind) for p in inspect.signature(original).parameters.values()]
        got = [(p.name, p.kind) for p in inspect.signature(getattr(ours, name)).parameters.values()]
        assert got == want, name


def test_torchs_own_importers_are_patched_and_restored(real):
    source, originals = real
    early = importlib.import_module("torch.fx.experimental.const_fold")
    package = importlib.import_module("torch.fx.passes")
    with installed():
        assert package.split_module is source  # still the module
        assert early.split_module is source.split_module is not originals["split_module"]
        assert all(vars(source)[name] is not original for name, original in originals.items())
        late = importlib.import_module("torch.fx.experimental.accelerator_partitioner")
    assert early.split_module is late.split_module is originals["split_module"]
    assert {name: vars(source)[name] for name in originals} == originals


def test_a_real_split_through_torchs_name(real):
    fx = importlib.import_module("torch.fx")
    torch = importlib.import_module("torch")
    source, _ = real

    class Two(torch.nn.Module):
        def forward(self, x):
            return (x + 1) * 2

    traced = fx.symbolic_trace(Two())
    with installed():
        split = source.split_module(traced, None, lambda node: int(node.name != "add"))
    assert [name for name, _ in split.named_children()] == ["submod_0", "submod_1"]
    assert torch.equal(split(torch.ones(2)), torch.full((2,), 4.0))


def test_a_real_simple_split_through_torchs_name(real):
    """A name that could not be combined with torch's own steps works now."""
    fx = importlib.import_module("torch.fx")
    torch = importlib.import_module("torch")
    source, originals = real
    graph = fx.Graph()
    x = graph.placeholder("x")
    a = graph.call_function(torch.relu, (x,))
    b = graph.create_node("call_function", torch.neg, (a,), name="y_" + "9" * 25)
    c = graph.call_function(torch.add, (a, b))
    graph.output(c)
    module = fx.GraphModule({}, graph)
    ids = {a: 0, b: 0, c: 1}
    expected = originals["split_module_simple"](module, ids)
    for policy in ("raise", "torch"):
        with installed(on_unsupported=policy):
            split = source.split_module_simple(module, ids)
        assert split.code == expected.code
        assert split.submod_0.code == expected.submod_0.code
        value = torch.randn(3)
        assert torch.equal(split(value), module(value))

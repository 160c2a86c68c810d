"""install(), uninstall() and installed(): the objects under all names, before and after."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import threading
import types

import pytest

from fxpress import _install
from fxpress._base.errors import UnsupportedError
from fxpress._install import install, installed, is_installed, uninstall
from fxpress._install.table import Entry
from fxpress._torch import deferred_code
from tests.support.components import OURS, TORCH, TORCH_SOURCE, same_names, table

# --- holders -----------------------------------------------------------------------------------


def test_the_source_and_importers_from_before_get_ours_and_are_restored(component, module):
    early = module("early_user", f"from {TORCH} import cut, helper, Part\nother = 1")
    was_torch, was_early = dict(vars(component.torch)), dict(vars(early))
    install()
    assert is_installed()
    assert component.torch.cut("g") == early.cut("g") == ("ours", "g", 0)
    assert early.helper() == "our helper"
    assert early.cut is component.torch.cut
    assert early.Part is component.torch.Part
    assert type(early.Part("p")) is component.ours.Part
    uninstall()
    assert not is_installed()
    assert same_names(was_torch, vars(component.torch))
    assert same_names(was_early, vars(early))


def test_importers_from_after_are_restored(component, module):
    with installed():
        late = module("late_user", f"from {TORCH} import cut as slice_, Part")
        # Imported from an importer, not from the source.
        later = module("later_user", "from late_user import slice_ as cut")
        assert late.slice_("g")[0] == later.cut("g")[0] == "ours"
    assert late.slice_ is later.cut is component.cut
    assert late.Part is component.part


def test_a_name_under_another_name_twice(component, module):
    user = module("as_user", f"from {TORCH} import cut as a, cut as b, Part as P")
    with installed():
        assert user.a is user.b is component.torch.cut
        assert user.P is component.torch.Part
    assert user.a is user.b is component.cut
    assert user.P is component.part


def test_modules_with_names_that_are_not_unicode(component, module):
    user = module("user\ud800", f"from {TORCH} import cut")
    with installed():
        assert user.cut is component.torch.cut is not component.cut
    assert user.cut is component.cut


def test_explicit_importers_of_fxpress_are_never_touched(component, module):
    source = f"from {OURS} import cut, Part"
    before = module("ours_before", source)
    was = dict(vars(before))
    with installed():
        assert same_names(was, vars(before))
        during = module("ours_during", source)
        both = module("ours_and_torch", f"{source}\nfrom {TORCH} import cut as torch_cut")
        assert both.torch_cut is not both.cut
    for user in (before, during, both):
        assert user.cut is component.ours.cut
        assert user.Part is component.ours.Part
    assert both.torch_cut is component.cut


def test_what_is_installed_is_not_our_own_object(component):
    with installed():
        assert component.torch.cut is not component.ours.cut
        assert component.torch.Part is not component.ours.Part


@pytest.mark.parametrize("name", ["fxpress._fake_compat", "fxpress"])
def test_modules_of_fxpress_keep_torchs_originals(component, module, name):
    inside = module(name, f"from {TORCH} import cut as torch_cut")
    # python -m fxpress._fake_cli
    main = module("not_quite_main", f"__package__ = 'fxpress'\nfrom {TORCH} import cut")
    namesake = module("fxpressive", f"from {TORCH} import cut")
    with installed():
        assert inside.torch_cut is main.cut is component.cut
        assert namesake.cut is component.torch.cut
    assert inside.torch_cut is main.cut is namesake.cut is component.cut


def test_a_name_somebody_else_patched_meanwhile_is_left_to_them(component, module):
    user = module("patching_user", f"from {TORCH} import cut")

    def mine() -> None: ...

    with installed():
        user.cut = mine
    assert user.cut is mine
    assert component.torch.cut is component.cut


def test_a_stand_in_saved_and_put_back_later_is_not_taken_for_torchs(component):
    with installed():
        saved = {"cut": component.torch.cut, "Part": component.torch.Part}
    vars(component.torch).update(saved)
    assert component.torch.cut("g")[0] == "torch"
    with installed():
        assert component.torch.cut("g")[0] == "ours"
    assert component.torch.cut is component.cut
    assert component.torch.Part is component.part


def test_a_patch_from_before_is_what_comes_back(component):
    def theirs(graph, at=0):
        return "theirs", graph, at

    component.torch.cut = theirs
    with installed(on_unsupported="torch"):
        assert component.torch.cut("g")[0] == "ours"
        assert component.torch.cut("odd")[0] == "theirs"
    assert component.torch.cut is theirs


def test_holders_out_of_reach_follow_the_installation(component):
    with installed():
        held = [component.torch.cut, component.torch.Part]
        assert held[0]("g")[0] == "ours"
    assert held[0]("g")[0] == "torch"
    assert type(held[1]("p")) is component.part
    with installed():
        assert held == [component.torch.cut, component.torch.Part]  # stand-ins are made once
        assert held[0]("g")[0] == "ours"


def test_a_module_only_some_of_whose_names_exist_in_this_torch(component, use, module):
    use([*table("helper"), *table("not_in_this_torch", "cut", ours=OURS)])
    with installed():
        assert not hasattr(component.torch, "not_in_this_torch")
        assert component.torch.cut("g")[0] == "ours"
    assert component.torch.cut is component.cut


def test_a_missing_name_needs_no_provider(component, use):
    use([*table("not_in_this_torch", ours="fxpress._no_such_component"), *table("cut")])
    with installed():
        assert component.torch.cut("g")[0] == "ours"


def test_a_name_that_our_component_takes_from_torch_stays(component, use):
    component.ours.helper = component.torch.helper
    was = component.torch.helper
    with installed():
        assert component.torch.helper is component.ours.helper is was
    assert component.torch.helper is component.ours.helper is was


def test_the_source_is_found_where_a_function_shadows_its_module(component, module, use):
    parent = module("faketorch.export")
    source = module("faketorch.export.unflatten", "def unflatten(): return 'torch'")
    parent.unflatten = source.unflatten
    was = source.unflatten
    module("fxpress._fake_unflatten", "def unflatten(): return 'ours'")
    use(
        [Entry("faketorch.export.unflatten", "unflatten", ("fxpress._fake_unflatten", "unflatten"))]
    )
    with installed():
        assert parent.unflatten is source.unflatten
        assert parent.unflatten() == "ours"
    assert parent.unflatten is source.unflatten is was


# --- odd entries of sys.modules ------------------------------------------------------------------


def test_odd_entries_of_sys_modules(component, module, monkeypatch, tmp_path):
    class NoDict(types.ModuleType):
        @property
        def __dict__(self):
            raise RuntimeError("no namespace for you")

    class Lazy(types.ModuleType):
        def __getattr__(self, name):
            raise AssertionError(f"lazy attribute {name} was loaded")

        def __setattr__(self, name, value):
            raise AssertionError(f"{name} was set through the module")

    class Hostile:
        def __getattribute__(self, name):
            raise AssertionError(f"{name} was asked of something that is no module")

    class Equal:
        def __eq__(self, other):
            raise AssertionError("values are compared by identity")

        __hash__ = None

    lazy = Lazy("odd_lazy")
    types.ModuleType.__getattribute__(lazy, "__dict__").update(cut=component.cut, equal=Equal())
    (tmp_path / "odd_late.py").write_text("raise AssertionError('loaded')")
    spec = importlib.util.spec_from_file_location("odd_late", tmp_path / "odd_late.py")
    spec.loader = importlib.util.LazyLoader(spec.loader)
    unloaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(unloaded)  # only marks it as lazy
    numbers = module("odd_numbers")
    numbers.__name__ = 7
    numbers.__package__ = None
    numbers.cut = component.cut
    odd = [None, 3, "text", Hostile(), Hostile, NoDict("odd_nodict"), lazy, unloaded]
    for i, entry in enumerate(odd):
        monkeypatch.setitem(sys.modules, f"odd_{i}", entry)
    monkeypatch.setitem(sys.modules, 12, module("odd_key"))
    with installed():
        assert vars(lazy)["cut"] is numbers.cut is component.torch.cut
    assert vars(lazy)["cut"] is numbers.cut is component.cut


def test_nothing_heavy_is_imported(component):
    before = set(sys.modules)
    with installed():
        pass
    assert set(sys.modules) == before


# --- counting ------------------------------------------------------------------------------------


def test_the_last_uninstall_restores(component):
    install()
    install()
    uninstall()
    assert is_installed()
    assert component.torch.cut("g")[0] == "ours"
    uninstall()
    assert component.torch.cut is component.cut


def test_uninstall_without_install(component):
    with pytest.raises(RuntimeError, match="without a matching"):
        uninstall()
    with installed():
        with pytest.raises(RuntimeError, match="without a matching"):
            uninstall()
        assert is_installed()
    install()
    uninstall()
    with pytest.raises(RuntimeError):
        uninstall()


def test_install_and_blocks_mix(component):
    with installed():
        install()
    assert is_installed()
    with installed():
        uninstall()
        assert is_installed()
    assert component.torch.cut is component.cut


def test_a_block_that_raises_restores(component):
    with pytest.raises(KeyError), installed():
        raise KeyError
    assert component.torch.cut is component.cut


def test_installed_as_a_decorator(component):
    @installed()
    def run(depth: int) -> str:
        return run(depth - 1) if depth else component.torch.cut("g")[0]

    assert run(3) == "ours"
    assert component.torch.cut is component.cut


def test_install_again_and_again_makes_no_new_objects(component):
    seen = set()
    for _ in range(5):
        with installed():
            seen.add((component.torch.cut, component.torch.Part))
    assert len(seen) == 1
    assert len(component.ours.Part.__subclasses__()) == 1


def test_a_reloaded_source_is_patched_anew(component):
    with installed():
        pass
    exec(TORCH_SOURCE, vars(component.torch))
    again = (component.torch.cut, component.torch.Part)
    with installed():
        assert component.torch.cut("g")[0] == "ours"
        assert isinstance(again[1]("p"), component.torch.Part)
    assert (component.torch.cut, component.torch.Part) == again


# --- threads -------------------------------------------------------------------------------------


def in_threads(work, count: int = 8) -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(index: int) -> None:
        try:
            barrier.wait()
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


@pytest.fixture
def eager_switching():
    was = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(was)


def test_threads_entering_and_leaving(component, module, eager_switching):
    user = module("thread_user", f"from {TORCH} import cut, Part")

    def work(index: int) -> None:
        for turn in range(5):
            with installed(on_unsupported=("raise", "torch")[(index + turn) % 2]):
                assert user.cut(index) == ("ours", index, 0)
                assert type(user.Part("p")) is component.ours.Part

    in_threads(work)
    assert not is_installed()
    assert user.cut is component.torch.cut is component.cut
    assert user.Part is component.torch.Part is component.part


def test_threads_importing_meanwhile(component, module, eager_switching):
    made: list[types.ModuleType] = []

    def work(index: int) -> None:
        for turn in range(10):
            if index % 2:
                with installed():
                    assert component.torch.cut("g")[0] == "ours"
            else:
                new = module(f"meanwhile_{index}_{turn}", f"from {TORCH} import cut, Part")
                made.append(new)
                assert new.cut("g")[0] in ("torch", "ours")

    in_threads(work)
    # One that fetched the name just before the source changed may keep a stand-in; none may
    # behave otherwise than torch, and the next round sweeps it up.
    assert {user.cut("g")[0] for user in made} == {"torch"}
    with installed():
        pass
    assert all(user.cut is component.cut and user.Part is component.part for user in made)


def test_leases_overlap_in_any_order(component):
    first, second = installed(on_unsupported="torch"), installed(on_unsupported="raise")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # not the top of the stack
    assert is_installed()
    with pytest.raises(UnsupportedError):
        component.torch.cut("odd")
    second.__exit__(None, None, None)
    assert component.torch.cut is component.cut


# --- failures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (table("Part", ours="fxpress._no_such_component"), ModuleNotFoundError),
        ([Entry(TORCH, "Part", (OURS, "Missing"))], AttributeError),
        ([Entry("faketorch.not_there", "x", (OURS, "x"))], ModuleNotFoundError),
    ],
)
def test_a_component_that_does_not_load_changes_nothing(component, use, module, broken, error):
    user = module("failing_user", f"from {TORCH} import cut, Part")
    was_torch, was_user = dict(vars(component.torch)), dict(vars(user))
    use([*table("cut"), *broken])
    with pytest.raises(error):
        install()
    with pytest.raises(error), installed():
        pass
    assert same_names(was_torch, vars(component.torch))
    assert same_names(was_user, vars(user))
    assert not is_installed()
    with pytest.raises(RuntimeError):
        uninstall()


def test_a_component_that_this_torch_does_not_allow(component, use, tmp_path, monkeypatch, caplog):
    (tmp_path / "our_other_component.py").write_text(
        "from fxpress._base.errors import UnsupportedError\n"
        "raise UnsupportedError('other methods')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    use([*table("cut"), *table("helper", ours="our_other_component")])
    with caplog.at_level("INFO", "fxpress"), installed():
        assert component.torch.cut("g") == ("ours", "g", 0)
        assert component.torch.helper() == "torch's helper"
    assert f"{TORCH} is not replaced: other methods" in caplog.text


def test_a_name_that_this_torch_lacks_leaves_one_component_to_it(
    component, use, tmp_path, monkeypatch, caplog
):
    (tmp_path / "our_renamed_component.py").write_text("from torch.fx import renamed\n")
    monkeypatch.syspath_prepend(tmp_path)
    use([*table("helper", "Part", ours="our_renamed_component"), *table("cut")])
    with caplog.at_level("INFO", "fxpress"), installed():
        assert component.torch.cut("g") == ("ours", "g", 0)
        assert component.torch.helper() == "torch's helper"
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1
    assert said[0].startswith(f"{TORCH} is not replaced: torch ")
    assert "cannot import name 'renamed' from 'torch.fx'" in said[0]


def test_an_interrupt_before_it_is_there_changes_nothing(component, module, monkeypatch):
    user = module("interrupted_user", f"from {TORCH} import cut")

    def interrupted() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_install.installation, "_caches", interrupted)
        for begin in (install, installed().__enter__):
            with pytest.raises(KeyboardInterrupt):
                begin()
            assert not is_installed()
            assert user.cut is component.torch.cut is component.cut
    with installed():
        assert user.cut("g")[0] == "ours"


def test_a_wrong_policy(component):
    with pytest.raises(ValueError, match="on_unsupported"):
        install(on_unsupported="ignore")
    assert not is_installed()


# --- processes -----------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(
    "lock",
    [lambda: _install._installation._lock, lambda: deferred_code._lock],
    ids=["install", "code"],
)
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(component, lock):
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock():
            held.set()
            done.wait(timeout=60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(timeout=60)
    child = os.fork()
    if child == 0:
        os._exit(0 if lock().acquire(timeout=10) else 1)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_holder_whose_name_cannot_be_replaced(component, module):
    """A namespace compares names by code that raises: nothing is installed."""

    class Key(str):
        armed = False

        def __hash__(self) -> int:
            return hash("mine")

        def __eq__(self, other: object) -> bool:
            if Key.armed:
                raise ZeroDivisionError
            return False

    early = module("early_user", f"from {TORCH} import cut, helper")
    hostile = module("hostile_user")
    vars(hostile)[Key("other")] = 1  # found before "mine", which has the same hash
    vars(hostile)["mine"] = component.cut
    late = module("late_user", f"from {TORCH} import cut, helper")
    before = [dict(vars(each)) for each in (component.torch, early, late)]
    Key.armed = True
    try:
        with pytest.raises(ZeroDivisionError):
            install()
        assert not is_installed()
    finally:
        Key.armed = False
    for each, names in zip((component.torch, early, late), before, strict=True):
        assert same_names(names, vars(each))
    with installed():
        assert hostile.mine("g")[0] == early.cut("g")[0] == "ours"
    assert hostile.mine is early.cut is component.cut

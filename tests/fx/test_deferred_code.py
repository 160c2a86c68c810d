"""A split module does everything an eager GraphModule does, whatever is the first thing asked.

Each test starts from a fresh split, on the result and on one of its submodules; torch's own split
of the same graph says what is right.
"""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import io
import pickle
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module

from fxpress.split_module import split_module
from tests.support.deferred import (
    WHICH,
    Pair,
    Which,
    assert_equal,
    in_blocks,
    inputs,
    is_deferred,
    make_pair,
    stderr_of,
    traced_net,
)


@pytest.fixture(params=[False, True], ids=["plain", "annotated"])
def annotated(request: pytest.FixtureRequest) -> bool:
    """Whether the graph has annotations: another way to generate code."""
    return bool(request.param)


@pytest.fixture(params=WHICH)
def pair(request: pytest.FixtureRequest, annotated: bool) -> Pair:
    return make_pair(request.param, traced_net(annotated=annotated))


# ---- code and its tables ----

WHILE_DEFERRED = {"_fxpress_pending", "__prepare_scriptable__"}  # what dir() shows until then
READS: dict[str, Callable[[GraphModule], Any]] = {
    "code": lambda m: m.code,
    "_code": lambda m: m._code,
    "_lineno_map": lambda m: m._lineno_map,
    "_prologue_start": lambda m: m._prologue_start,
    "hasattr": lambda m: [hasattr(m, n) for n in ("_code", "forward", "_in_spec", "nothing")],
    "signature of forward": lambda m: inspect.signature(m.forward),
    "signature": lambda m: inspect.signature(m),
    "signature of the class's forward": lambda m: inspect.signature(type(m).forward),
    "source": lambda m: inspect.getsource(m.forward),
    "source of the class's forward": lambda m: inspect.getsource(type(m).forward),
    "name of forward": lambda m: (m.forward.__name__, m.forward.__qualname__),
    "varnames": lambda m: m.forward.__code__.co_varnames,
    "str": str,
    "repr": repr,
    "print_readable": lambda m: m.print_readable(print_output=False),
    "state_dict": lambda m: list(m.state_dict()),
    "named_modules": lambda m: [n for n, _ in m.named_modules()],
    "dir": lambda m: sorted(set(dir(m)) - WHILE_DEFERRED),
    "members": lambda m: sorted({n for n, _ in inspect.getmembers(m)} - WHILE_DEFERRED),
    "boxed": lambda m: m._boxed_call,
}


@pytest.mark.parametrize("read", READS)
def test_reading_gives_what_torch_gives(pair: Pair, read: str) -> None:
    pair.same(READS[read])


def test_forward_is_a_function_of_the_class_and_a_method_of_the_instance(pair: Pair) -> None:
    assert inspect.isfunction(type(pair.ours).forward)
    assert inspect.ismethod(pair.ours.forward)
    assert pair.ours.forward.__func__ is vars(type(pair.ours))["forward"]
    assert pair.ours.forward.__self__ is pair.ours


def test_print_readable_prints(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    pair.ours.print_readable()
    ours = capsys.readouterr().out
    pair.theirs.print_readable()
    assert ours == capsys.readouterr().out


def test_class_looks_like_torchs_before_and_after(pair: Pair) -> None:
    ours, theirs = type(pair.ours), type(pair.theirs)
    for _ in range(2):
        for name in ("__name__", "__qualname__", "__module__", "__doc__"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert ours.__mro__[1:] == theirs.__mro__[1:]
        pair.ours.code
    assert set(vars(ours)) == set(vars(theirs))
    assert {n: type(v) for n, v in vars(ours).items()} == {
        n: type(v) for n, v in vars(theirs).items()
    }


def test_instance_looks_like_torchs_after_code_was_generated(pair: Pair) -> None:
    pair.ours(*pair.args)
    assert list(vars(pair.ours)) == list(vars(pair.theirs))


# ---- calling ----

CALLS: dict[str, Callable[[GraphModule, tuple[Any, ...]], Any]] = {
    "call": lambda m, a: m(*a),
    "forward": lambda m, a: m.forward(*a),
    "unbound forward": lambda m, a: type(m).forward(m, *a),
    "unbound call": lambda m, a: type(m).__call__(m, *a),
    "_call_impl": lambda m, a: m._call_impl(*a),
    "keywords": lambda m, a: m(
        **dict(zip(inspect.signature(m.forward).parameters, a, strict=True))
    ),
    "no_grad": lambda m, a: torch.no_grad()(m)(*a),
    "functional_call": lambda m, a: torch.func.functional_call(
        m, {k: v + 1 for k, v in m.named_parameters()}, a
    ),
    "interpreter": lambda m, a: torch.fx.Interpreter(m).run(*a),
    "vmap": lambda m, a: torch.vmap(m, in_dims=(0, None if a[1].dim() == 1 else 0))(*a),
    "jit trace": lambda m, a: torch.jit.trace(m, a)(*a),
    "state moved": lambda m, a: m.to(torch.float64)(*(t.to(torch.float64) for t in a)),
    "half and back": lambda m, a: m.bfloat16().float()(*a),
}


@pytest.mark.parametrize("call", CALLS)
def test_calling_gives_what_torch_gives(apart: Pair, call: str) -> None:
    apart.same_result(lambda m: CALLS[call](m, apart.args))


@pytest.fixture(params=WHICH)
def apart(request: pytest.FixtureRequest, annotated: bool) -> Pair:
    """Give both sides separate weights, because some of the calls change them."""
    ours, theirs = (make_pair(request.param, traced_net(annotated=annotated)) for _ in range(2))
    return Pair(ours.ours, theirs.theirs, ours.args, ours.root, ours.source)


def test_gradients(pair: Pair) -> None:
    def gradients(module: GraphModule) -> list[torch.Tensor]:
        pair.source.zero_grad()
        sum(out.square().sum() for out in module(*pair.args)).backward()
        return [p.grad.clone() for p in pair.source.parameters() if p.grad is not None]

    pair.same_result(gradients)


def test_children_are_left_alone_until_they_are_needed() -> None:
    ours = make_pair("result").ours
    ours.code
    assert is_deferred(ours.submod_0)
    ours.submod_0.code
    assert is_deferred(ours.submod_1)
    ours(*inputs())
    assert not is_deferred(ours.submod_1)


def test_interpreter_leaves_the_module_it_interprets_alone() -> None:
    ours = make_pair("result").ours
    torch.fx.Interpreter(ours).run(*inputs())
    assert is_deferred(ours)


def test_train_and_eval(pair: Pair) -> None:
    pair.ours.eval()
    assert not any(m.training for m in pair.ours.modules())
    pair.ours.train()
    assert all(m.training for m in pair.ours.modules())
    assert is_deferred(pair.ours)
    assert_equal(pair.ours(*pair.args), pair.expected())


def test_state_dict_round_trip(pair: Pair) -> None:
    changed = {k: torch.full_like(v, 0.25) for k, v in pair.theirs.state_dict().items()}
    assert pair.ours.load_state_dict(changed).missing_keys == []
    assert is_deferred(pair.ours)
    assert_equal(dict(pair.ours.state_dict()), changed)
    assert_equal(pair.ours(*pair.args), pair.expected())  # the weights are shared


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_hooks(pair: Pair) -> None:
    def seen_by_hooks(module: GraphModule) -> list[str]:
        seen: list[str] = []
        module.register_forward_pre_hook(lambda m, a: seen.append("before"))
        module.register_forward_hook(lambda m, a, out: seen.append("after"))
        module.register_full_backward_hook(lambda m, gi, go: seen.append("backward"))
        out = module(*pair.args)
        sum(o.sum() for o in out).backward()
        return seen

    assert pair.same(seen_by_hooks) == ["before", "after", "backward"]


def test_forward_hook_replaces_the_result(pair: Pair) -> None:
    pair.ours.register_forward_hook(lambda m, a, out: "replaced")
    assert pair.ours(*pair.args) == "replaced"


def test_hook_on_an_untouched_child() -> None:
    pair = make_pair("result")
    pair.ours.submod_0.register_forward_hook(lambda m, a, out: tuple(o * 2 for o in out))
    pair.theirs.submod_0.register_forward_hook(lambda m, a, out: tuple(o * 2 for o in out))
    pair.same_result(lambda m: m(*pair.args))


# ---- errors ----


def test_error_inside_forward_is_reported_as_torch_does(pair: Pair) -> None:
    wrong = tuple(torch.ones(5, 7) for _ in pair.args)

    def reported(module: GraphModule) -> tuple[type, str, bool, bool]:
        error, text = stderr_of(lambda: module(*wrong))
        assert error is not None
        return type(error), str(error), "Call using an FX-traced Module" in text, "HERE" in text

    pair.same(reported)


def test_error_in_the_generated_line_shows_its_text() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.add, (x, x)))
    source = GraphModule({}, graph)
    pair = make_pair("result", source)
    messages = []
    for module in (pair.ours.submod_0, pair.theirs.submod_0):
        error, text = stderr_of(lambda m=module: m("a"))
        assert isinstance(error, TypeError)
        messages.append(text[text.index("Call using an FX-traced Module") :])
    assert messages[0] == messages[1]
    assert "add = torch.add(x, x);  x = None" in messages[0]


def test_wrong_number_of_arguments(pair: Pair) -> None:
    with pytest.raises(TypeError, match=r"forward\(\) missing 1 required positional argument"):
        pair.ours(pair.args[0])


@pytest.mark.parametrize("access", ["code", "_code", "forward", "call", "hasattr", "pickle"])
def test_graph_that_has_no_code_raises_and_works_after_repair(pair: Pair, access: str) -> None:
    accesses: dict[str, Callable[[], Any]] = {
        "code": lambda: pair.ours.code,
        "_code": lambda: pair.ours._code,
        "forward": lambda: pair.ours.forward,
        "call": lambda: pair.ours(*pair.args),
        "hasattr": lambda: hasattr(pair.ours, "_code"),
        "pickle": lambda: pickle.dumps(pair.ours),
    }
    first = next(n for n in pair.ours.graph.nodes if n.op.startswith("call_"))
    op, target = first.op, first.target
    first.op, first.target = "call_function", functools.partial(torch.add)  # it has no name
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot generate the code of GraphModule"):
            accesses[access]()
        assert is_deferred(pair.ours)
        assert list(vars(pair.ours)) == [k for k in vars(pair.theirs) if k not in CODE_STATE]
    first.op, first.target = op, target
    assert_equal(pair.ours(*pair.args), pair.expected())
    assert pair.ours.code == pair.theirs.code


CODE_STATE = ("_code", "_lineno_map", "_prologue_start")


@pytest.mark.parametrize("damage", ["unknown op", "bad name", "not callable"])
def test_graph_that_torch_refuses_raises_the_same(pair: Pair, damage: str) -> None:
    def break_graph(module: GraphModule) -> None:
        call = next(n for n in module.graph.nodes if n.op.startswith("call_"))
        if damage == "unknown op":
            call.op = "call_nobody"
        elif damage == "not callable":
            call.op, call.target = "call_function", 17
        else:
            next(n for n in module.graph.nodes if n.op == "placeholder").target = "no name"

    break_graph(pair.ours)
    break_graph(pair.theirs)
    error, _ = stderr_of(lambda: pair.ours.code)
    expected, _ = stderr_of(pair.theirs.recompile)
    assert type(error) is type(expected)
    assert is_deferred(pair.ours)


# ---- copies and pickles ----


def _pickled(module: GraphModule) -> GraphModule:
    return pickle.loads(pickle.dumps(module))


def _saved(module: GraphModule) -> GraphModule:
    stream = io.BytesIO()
    torch.save(module, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


COPIES: dict[str, Callable[[GraphModule], GraphModule]] = {
    "pickle": _pickled,
    "torch.save": _saved,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy twice": lambda m: copy.deepcopy(copy.deepcopy(m)),
    "pickle of a deepcopy": lambda m: _pickled(copy.deepcopy(m)),
    "replica": lambda m: m._replicate_for_data_parallel(),
    "GraphModule": lambda m: GraphModule(m, m.graph),
    "GraphModule of a copied graph": lambda m: GraphModule(m, copy.deepcopy(m.graph)),
    "symbolic_trace": torch.fx.symbolic_trace,
    "Transformer": lambda m: torch.fx.Transformer(m).transform(),
    "lazy": _LazyGraphModule.from_graphmodule,
}


@pytest.mark.parametrize("make", COPIES)
def test_copies_equal_the_copies_of_torchs(pair: Pair, make: str) -> None:
    assert is_deferred(pair.ours)
    ours, theirs = COPIES[make](pair.ours), COPIES[make](pair.theirs)
    assert list(vars(ours)) == list(vars(theirs))
    assert_equal(ours(*pair.args), theirs(*pair.args))
    assert ours.code == theirs.code
    assert [n for n, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]
    assert ours.meta == theirs.meta
    assert_equal(pair.ours(*pair.args), pair.expected())
    assert pair.ours.code == pair.theirs.code


def test_a_copy_has_a_class_of_its_own(pair: Pair) -> None:
    other = copy.deepcopy(pair.ours)
    assert type(other) is not type(pair.ours)
    for node in other.graph.nodes:
        if node.op == "output":
            node.args = (17,)
    other.recompile()
    assert other(*pair.args) == 17
    assert_equal(pair.ours(*pair.args), pair.expected())


def test_pickled_bytes_equal_torchs(pair: Pair) -> None:
    pair.same(lambda m: pickle.dumps(m))


LOAD_ELSEWHERE = """
import sys
sys.modules["fxpress"] = None  # importing it raises
import torch
for module, args, expected in torch.load(sys.argv[1], weights_only=False):
    torch.testing.assert_close(module(*args), expected, rtol=0, atol=0)
assert not [name for name in sys.modules if name.startswith("fxpress.")]
"""


@pytest.mark.slow("separate processes")
def test_pickles_load_where_fxpress_is_not_installed(tmp_path: Path) -> None:
    file = tmp_path / "modules.pt"
    sources = [traced_net(annotated=annotated) for annotated in (False, True)]
    pairs = [make_pair(which, source) for which in WHICH for source in sources]
    torch.save([(pair.ours, pair.args, pair.expected()) for pair in pairs], file)
    command = [sys.executable, "-c", LOAD_ELSEWHERE, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


def test_to_folder(pair: Pair, tmp_path: Path) -> None:
    def written(module: GraphModule) -> str:
        folder = tmp_path / ("ours" if module is pair.ours else "theirs")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module.to_folder(folder)
        return (folder / "module.py").read_text().replace(str(folder), "FOLDER")

    pair.same(written)


# ---- lifetimes, threads, torch's own lazy modules ----


def test_module_dies_before_its_class() -> None:
    ours = make_pair("result").ours
    cls, gone = type(ours), weakref.ref(ours)
    del ours
    gc.collect()
    assert gone() is None
    with pytest.raises(RuntimeError, match="was freed"):
        cls.forward
    assert cls.__name__ == "GraphModule"


def test_nothing_keeps_a_module_alive_whose_code_was_generated(which: Which = "result") -> None:
    pair = make_pair(which)
    pair.ours(*pair.args)
    gone = [weakref.ref(m) for m in (pair.ours, pair.ours.submod_0, type(pair.ours))]
    source = pair.source
    del pair
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3
    assert source is not None


def test_submodule_outlives_the_result() -> None:
    pair = make_pair("submodule")
    ours, args, expected = pair.ours, pair.args, pair.expected()
    del pair
    gc.collect()
    assert_equal(ours(*args), expected)


FIRST_TOUCHES: dict[str, Callable[[GraphModule], Any]] = {
    "call": lambda m: m(*inputs()),
    "code": lambda m: m.code,
    "forward": lambda m: m.forward(*inputs()),
    "recompile": lambda m: m.recompile(),  # one at a time: torch's recompile allows no other
    "lineno": lambda m: m._lineno_map,
    "wrapped": lambda m: m._wrapped_call(m, *inputs()),
    "class": lambda m: type(m).forward(m, *inputs()),
}


@pytest.mark.parametrize("mixed", [False, True])
def test_first_access_by_many_threads_at_once(mixed: bool) -> None:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            _touch_from_threads(list(FIRST_TOUCHES.values()) if mixed else [FIRST_TOUCHES["call"]])
    finally:
        sys.setswitchinterval(interval)


def _touch_from_threads(touches: list[Callable[[GraphModule], Any]]) -> None:
    pair = make_pair("result")
    barrier = threading.Barrier(8)
    failures: list[BaseException] = []

    def touch(index: int) -> None:
        barrier.wait()
        try:
            touches[index % len(touches)](pair.ours)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=touch, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert pair.ours.code == pair.theirs.code
    assert list(vars(pair.ours)) == list(vars(pair.theirs))
    assert set(vars(type(pair.ours))) == set(vars(type(pair.theirs)))
    assert_equal(pair.ours(*pair.args), pair.expected())


@pytest.mark.parametrize("which", WHICH)
def test_torchs_lazy_modules_where_its_flag_asks_for_them(which: Which) -> None:
    with _use_lazy_graph_module(True):
        pair = make_pair(which)
    for module in (pair.ours, pair.theirs):
        assert isinstance(module, _LazyGraphModule)
        assert module._needs_recompile()
    assert list(vars(pair.ours)) == list(vars(pair.theirs))
    assert set(vars(type(pair.ours))) == set(vars(type(pair.theirs)))
    assert_equal(pair.ours(*pair.args), pair.theirs(*pair.args))
    assert not pair.ours._needs_recompile()
    assert pair.ours.code == pair.theirs.code
    assert list(vars(pair.ours)) == list(vars(pair.theirs))


def test_lazy_flag_after_the_split_changes_nothing() -> None:
    pair = make_pair("result")
    with _use_lazy_graph_module(True):
        assert not isinstance(pair.ours, _LazyGraphModule)
        assert_equal(pair.ours(*pair.args), pair.expected())
        assert pair.ours.code == pair.theirs.code


def test_a_split_of_a_split() -> None:
    first = make_pair("result").ours
    source = traced_net()
    again = split_module(first, None, in_blocks(first, 1))
    assert_equal(again(*inputs()), source(*inputs()))
